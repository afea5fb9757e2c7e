package io.takeup.spark;

import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.LongConsumer;

/**
 * Who will still read which blocks together, and which of these groups are complete in memory.
 *
 * <p>The twin of {@code takeup/caching/groups.py}, where the idea is explained; a test sends random events to both.
 * Every event may come twice or late. Not thread-safe: its owner holds a lock.
 */
final class GroupTable {
    /** The blocks one open consumer reads together. */
    static final class Group {
        final long consumer;
        final long[] blocks;
        final double position;
        final int stage;
        int numMissing;

        Group(long consumer, long[] blocks, double position, int stage) {
            this.consumer = consumer;
            this.blocks = blocks;
            this.position = position;
            this.stage = stage;
        }
    }

    private static final class Block {
        final Map<Long, Group> groups = new LinkedHashMap<>(4);
        Boolean inMemory; // null: never materialised
        int erc;
        long sizeBytes = 1;
        double costS;
    }

    private final Map<Long, Group> groups = new HashMap<>();
    private final Map<Long, Block> blocks = new HashMap<>();
    private final LongConsumer changed;

    /** {@code changed} hears of every block whose counts are not what they were. */
    GroupTable(LongConsumer changed) {
        this.changed = changed;
    }

    // Events -------------------------------------------------------------------------------------------------------

    /** A consumer will read these blocks. Opening it again replaces what was said before. */
    void open(long consumer, long[] inputs, double position, int stage) {
        close(consumer);
        Group group = new Group(consumer, distinct(inputs), position, stage);
        groups.put(consumer, group);
        for (long key : group.blocks) {
            Block block = blocks.computeIfAbsent(key, unseen -> new Block());
            block.groups.put(consumer, group);
            group.numMissing += Boolean.FALSE.equals(block.inMemory) ? 1 : 0;
        }
        countComplete(group, +1);
        announce(group);
    }

    /** The consumer is computed, failed for good or cancelled; unknown ones are ignored. Gives the group it had. */
    Group close(long consumer) {
        Group group = groups.remove(consumer);
        if (group == null) {
            return null;
        }
        countComplete(group, -1);
        for (long key : group.blocks) {
            blocks.get(key).groups.remove(consumer);
        }
        announce(group);
        return group;
    }

    /** What the block weighs, and how long it takes to bring it back once it is lost. */
    void describe(long key, long sizeBytes, double costS) {
        Block block = blocks.computeIfAbsent(key, unseen -> new Block());
        block.sizeBytes = sizeBytes;
        block.costS = costS;
        changed.accept(key);
    }

    /** The block is in memory. Returns how many groups became complete by it. */
    int cached(long key) {
        Block block = blocks.computeIfAbsent(key, unseen -> new Block());
        boolean wasLost = Boolean.FALSE.equals(block.inMemory);
        block.inMemory = true;
        int numComplete = 0;
        for (Group group : wasLost ? block.groups.values() : Collections.<Group>emptyList()) {
            group.numMissing--;
            numComplete += group.numMissing == 0 ? 1 : 0;
            flip(group, +1);
        }
        return numComplete;
    }

    /** The block exists but is in no memory. Returns how many complete groups broke. */
    int lost(long key) {
        Block block = blocks.computeIfAbsent(key, unseen -> new Block());
        boolean wasLost = Boolean.FALSE.equals(block.inMemory);
        block.inMemory = false;
        int numBroken = 0;
        for (Group group : wasLost ? Collections.<Group>emptyList() : block.groups.values()) {
            numBroken += group.numMissing == 0 ? 1 : 0;
            flip(group, -1);
            group.numMissing++;
        }
        return numBroken;
    }

    /** Nobody will ever need the block again: drop it and every group that waits for it. */
    void forget(long key) {
        Block block = blocks.get(key);
        if (block != null) {
            for (Long consumer : block.groups.keySet().toArray(new Long[0])) {
                close(consumer);
            }
            blocks.remove(key);
            changed.accept(key);
        }
    }

    // Questions ----------------------------------------------------------------------------------------------------

    Collection<Group> groups(long key) {
        Block block = blocks.get(key);
        return block == null ? Collections.emptyList() : block.groups.values();
    }

    Collection<Group> groups() {
        return groups.values();
    }

    Group group(long consumer) {
        return groups.get(consumer);
    }

    boolean isLost(long key) {
        Block block = blocks.get(key);
        return block != null && Boolean.FALSE.equals(block.inMemory);
    }

    /** Was in memory or is; false for a block that does not exist yet. */
    boolean isMade(long key) {
        Block block = blocks.get(key);
        return block != null && block.inMemory != null;
    }

    int rc(long key) {
        return groups(key).size();
    }

    int erc(long key) {
        Block block = blocks.get(key);
        return block == null ? 0 : block.erc;
    }

    /** Position of the first open consumer of the block, infinity if there is none. */
    double nextUse(long key) {
        double first = Double.POSITIVE_INFINITY;
        for (Group group : groups(key)) {
            first = Math.min(first, group.position);
        }
        return first;
    }

    double nextStage(long key) {
        double first = Double.POSITIVE_INFINITY;
        for (Group group : groups(key)) {
            first = Math.min(first, group.stage);
        }
        return first;
    }

    long sizeBytes(long key) {
        Block block = blocks.get(key);
        return block == null ? 1 : block.sizeBytes;
    }

    double costS(long key) {
        Block block = blocks.get(key);
        return block == null ? 0 : block.costS;
    }

    int numGroups() {
        return groups.size();
    }

    // --------------------------------------------------------------------------------------------------------------

    private void flip(Group group, int change) {
        if (group.numMissing == 0) {
            countComplete(group, change);
            announce(group);
        }
    }

    private void countComplete(Group group, int change) {
        if (group.numMissing == 0) {
            for (long key : group.blocks) {
                blocks.get(key).erc += change;
            }
        }
    }

    private void announce(Group group) {
        for (long key : group.blocks) {
            changed.accept(key);
        }
    }

    private static long[] distinct(long[] inputs) {
        return inputs.length < 2 ? inputs : Arrays.stream(inputs).distinct().toArray();
    }
}
