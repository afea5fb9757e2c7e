package io.takeup.spark;

import java.util.Comparator;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeSet;

/**
 * The blocks of one memory, always in the order in which they would leave: lowest rank first, ties to the least recent.
 *
 * <p>Every change moves one block, in logarithmic time, so that a choice of victims never sorts.
 */
final class VictimIndex<B> {
    /** A stored block and the place it has in the order. */
    static final class Entry<B> {
        final B block;
        final long key;
        final long sizeBytes;
        double first;
        double second;
        long lastUsed;
        boolean isReferenced;

        Entry(B block, long key, long sizeBytes) {
            this.block = block;
            this.key = key;
            this.sizeBytes = sizeBytes;
        }
    }

    private static final Comparator<Entry<?>> ORDER = (one, other) -> {
        int byFirst = Double.compare(one.first, other.first);
        int bySecond = byFirst != 0 ? byFirst : Double.compare(one.second, other.second);
        return bySecond != 0 ? bySecond : Long.compare(one.lastUsed, other.lastUsed);
    };

    private final Map<B, Entry<B>> entries = new HashMap<>();
    private final TreeSet<Entry<B>> order = new TreeSet<>(ORDER);
    private long now;
    private long inactiveBytes;

    /** Keep the block, or keep it again with another size. */
    void put(B block, long key, long sizeBytes, double first, double second, boolean isReferenced) {
        remove(block);
        Entry<B> entry = new Entry<>(block, key, sizeBytes);
        entry.lastUsed = ++now; // unique, so that no two entries are equal in the tree
        entries.put(block, entry);
        insert(entry, first, second, isReferenced);
    }

    /** The block has another rank. */
    void rank(B block, double first, double second, boolean isReferenced) {
        Entry<B> entry = entries.get(block);
        if (entry != null && (first != entry.first || second != entry.second || isReferenced != entry.isReferenced)) {
            take(entry);
            insert(entry, first, second, isReferenced);
        }
    }

    /** The block was used just now. */
    void touch(B block) {
        Entry<B> entry = entries.get(block);
        if (entry != null) {
            order.remove(entry);
            entry.lastUsed = ++now;
            order.add(entry);
        }
    }

    boolean remove(B block) {
        Entry<B> entry = entries.remove(block);
        if (entry != null) {
            take(entry);
        }
        return entry != null;
    }

    Entry<B> get(B block) {
        return entries.get(block);
    }

    /** First to leave first. */
    Iterator<Entry<B>> iterator() {
        return order.iterator();
    }

    /** Bytes that nobody is known to read. */
    long inactiveBytes() {
        return inactiveBytes;
    }

    int size() {
        return entries.size();
    }

    private void insert(Entry<B> entry, double first, double second, boolean isReferenced) {
        entry.first = first;
        entry.second = second;
        entry.isReferenced = isReferenced;
        order.add(entry);
        inactiveBytes += isReferenced ? 0 : entry.sizeBytes;
    }

    private void take(Entry<B> entry) {
        order.remove(entry);
        inactiveBytes -= entry.isReferenced ? 0 : entry.sizeBytes;
    }
}
