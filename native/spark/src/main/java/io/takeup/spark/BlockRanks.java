package io.takeup.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Predicate;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.RDDBlockId;

/**
 * What one executor knows: its group table, and the blocks in its memory in the order in which they would leave.
 *
 * <p>One lock guards everything; nothing here calls back into Spark while holding it, except the predicate of
 * {@link #choose}, which must not block.
 */
final class BlockRanks {
    private static final double DEFAULT_COST_S_PER_BYTE = 1e-8; // as if read from a disk of 100 MB/s
    private static final int NUM_EARLY = 4096;
    private static final int SLICE = 1000; // things of a message that are acted on at a time
    private static final int MOST_SPARED = 1000; // siblings that a choice looks past

    /** The victims, and whether they free enough. */
    static final class Choice {
        final List<BlockId> victims = new ArrayList<>();
        long freedBytes;
        int numReferenced;
        boolean isEnough;
    }

    /** Averages over the blocks of an RDD; 0 where nothing was measured. */
    private static final class Seen {
        double sizeBytes;
        double computeS;
        double readS; // back from disk

        static double average(double old, double now) {
            return now <= 0 ? old : old == 0 ? now : 0.8 * old + 0.2 * now;
        }
    }

    private final GroupTable table;
    private final Lineage lineage;
    private final Writes writes;
    private final Ranks.Rank rank;
    private final boolean admission;
    private final Map<MemoryMode, VictimIndex<BlockId>> indexes = new HashMap<>();
    private final Map<Long, BlockId> stored = new HashMap<>();
    private final Map<Long, BlockId> onDisk = new HashMap<>(); // dropped from this memory, to be had from this disk
    private final Set<Long> dirty = new HashSet<>();
    private final Shadow shadow = new Shadow();
    private final Set<Long> comingFromDisk = new HashSet<>();
    private final Map<Integer, Seen> seenOfRdd = new HashMap<>();
    private final Map<Long, Boolean> closedEarly = new LinkedHashMap<>() {
        @Override
        protected boolean removeEldestEntry(Map.Entry<Long, Boolean> eldest) {
            return size() > NUM_EARLY;
        }
    };

    BlockRanks(String policy, boolean admission, long capacityBytes) {
        this.table = new GroupTable(dirty::add);
        this.lineage = new Lineage(table);
        this.writes = new Writes(lineage, table, Ranks.horizonBytes(capacityBytes));
        this.rank = Ranks.of(policy, table, capacityBytes, writes::logWorth);
        this.admission = admission;
        for (MemoryMode mode : MemoryMode.values()) {
            indexes.put(mode, new VictimIndex<>());
        }
    }

    // What the driver says ------------------------------------------------------------------------------------------

    /** A long message is acted on in slices, so that a choice never waits for all of it. */
    void apply(Object[] message) {
        if (message[0].equals(Messages.ALL)) {
            for (Object part : (Object[]) message[1]) {
                apply((Object[]) part);
            }
            return;
        }
        int count = Messages.count(message);
        for (int from = 0; from < count; from += SLICE) {
            if (from > 0) {
                LockSupport.parkNanos(1); // who waits for the lock gets it, which leaving it alone does not ensure
            }
            hear(message, from, Math.min(count, from + SLICE));
        }
    }

    private synchronized void hear(Object[] message, int from, int to) {
        switch ((String) message[0]) {
            case Messages.OPEN:
                Messages.forEachConsumer(message, from, to, this::open);
                break;
            case Messages.CLOSE:
                Arrays.stream((long[]) message[1], from, to).forEach(lineage::close);
                break;
            case Messages.LINEAGE:
                Messages.forEachLineage(message, from, to, lineage::computedFrom);
                break;
            case Messages.STATE:
                applyState((long[]) message[1], (long[]) message[2], (long[]) message[3]);
                break;
            case Messages.FORGET:
                forget((long[]) message[1]);
                break;
            case Messages.EXPECT:
                Messages.forEachExpected(message, from, to, this::expect);
                break;
            default:
                throw new IllegalArgumentException("no message " + message[0]);
        }
        flush();
    }

    private void open(long consumer, long[] blocks, double position, int stage) {
        if (!closedEarly.containsKey(consumer)) {
            lineage.open(consumer, blocks, position, stage);
        }
    }

    /** Experience says that the block will be read at this position; a position of infinity takes that back. */
    private void expect(long block, double position, int stage) {
        if (Double.isInfinite(position)) {
            lineage.close(Keys.expected(block));
        } else {
            lineage.open(Keys.expected(block), new long[] {block}, position, stage);
        }
    }

    /** What is here the executor knows better. */
    private void applyState(long[] cached, long[] lost, long[] onDisk) {
        for (long block : onDisk) {
            lineage.keptOnDisk(block);
        }
        for (long block : cached) {
            if (!stored.containsKey(block)) {
                lineage.cached(block, false);
            }
        }
        for (long block : lost) {
            if (!stored.containsKey(block)) {
                lineage.lost(block);
            }
        }
    }

    private void forget(long[] blocks) {
        for (long block : blocks) {
            lineage.forget(block);
            onDisk.remove(block);
            writes.forget(block);
            seenOfRdd.remove(Keys.rdd(block));
            shadow.forget(block);
        }
    }

    // What happens here ---------------------------------------------------------------------------------------------

    /** A task of this executor has succeeded: its references end now, before the driver hears of it. */
    synchronized void taskSucceeded(long task) {
        GroupTable.Group group = table.group(task);
        if (group == null) {
            closedEarly.put(task, true);
        } else if (writes.advance(group.position)) {
            stored.keySet().stream().filter(writes::mustBeWritten).forEach(dirty::add);
        }
        lineage.close(task);
        flush();
    }

    /**
     * The block is about to come in: it and the groups it completes count as if it were in memory. The task that brings
     * it has it, stored or not, and is no reader of it any more.
     */
    synchronized void arriving(BlockId id, long task, boolean keepsDiskCopy, boolean isOnDisk) {
        long block = key(id);
        if (isOnDisk) {
            writes.written(block);
        }
        if (block >= 0 && !stored.containsKey(block)) {
            if (isOnDisk) {
                comingFromDisk.add(block);
            }
            lineage.cached(block, keepsDiskCopy);
            describe(block, 0, 0);
            shadow.made(block, table.sizeBytes(block), table.costS(block), isOnDisk);
            lineage.has(task, block);
            flush();
        }
    }

    /** It did not come in after all. */
    synchronized void refused(BlockId id) {
        long block = key(id);
        comingFromDisk.remove(block);
        if (block >= 0 && !stored.containsKey(block)) {
            lineage.lost(block);
            flush();
        }
    }

    synchronized void stored(BlockId id, long sizeBytes, MemoryMode mode, double costS) {
        long block = key(id);
        if (block >= 0) {
            stored.put(block, id);
            onDisk.remove(block);
            describe(block, sizeBytes, costS);
            shadow.stored(block, sizeBytes);
            comingFromDisk.remove(block);
            lineage.cached(block, false);
        }
        indexes.get(mode).put(id, block, sizeBytes, first(block), second(block), isReferenced(block));
        flush();
    }

    /** {@code isHit}: for a task that did not bring the block itself. */
    synchronized void read(BlockId id, boolean isHit) {
        long block = key(id);
        if (isHit) {
            shadow.found(block, table.sizeBytes(block), table.costS(block), lineage.isOnDisk(block));
        }
        for (VictimIndex<BlockId> index : indexes.values()) {
            index.touch(id);
        }
    }

    synchronized void removed(BlockId id) {
        for (VictimIndex<BlockId> index : indexes.values()) {
            index.remove(id);
        }
        long block = key(id);
        if (block >= 0 && stored.remove(block) != null) {
            lineage.lost(block);
            flush();
        }
    }

    /** The block was dropped from memory and is on disk. */
    synchronized void leftOnDisk(BlockId id) {
        if (key(id) >= 0) {
            onDisk.put(key(id), id);
            writes.written(key(id));
        }
    }

    /**
     * The block on disk that a running job reads next and that fits; it is not given again until it has been dropped
     * again. For later jobs it is too early: what this one stores would push the block out before it is read.
     */
    synchronized BlockId takeNextFromDisk(long roomBytes) {
        Long next = null;
        double nearest = Double.POSITIVE_INFINITY;
        for (long block : onDisk.keySet()) {
            double position = table.sizeBytes(block) <= roomBytes ? nextTask(block) : Double.POSITIVE_INFINITY;
            if (position < nearest) {
                next = block;
                nearest = position;
            }
        }
        return next == null ? null : onDisk.remove(next);
    }

    private double nextTask(long block) {
        double nearest = Double.POSITIVE_INFINITY;
        for (GroupTable.Group group : table.groups(block)) {
            nearest = Keys.isTask(group.consumer) ? Math.min(nearest, group.position) : nearest;
        }
        return nearest;
    }

    /**
     * Who leaves for {@code space} bytes. {@code wanted} bytes must be there to take, or the block had better stay out.
     * Under admission only blocks of strictly lower rank leave for the incoming one, and those nobody is known to read;
     * the latter stay if it is on disk, and siblings of the incoming block stay if nobody is known to read it either:
     * that is Spark's own rule, which keeps a scan from evicting itself.
     */
    synchronized Choice choose(
            BlockId incoming, boolean isOnDisk, long space, long wanted, MemoryMode mode, Predicate<BlockId> lock) {
        Choice choice = new Choice();
        long block = incoming == null ? -1 : key(incoming);
        double[] worth = {first(block), second(block)};
        long availableBytes = 0;
        int numSpared = 0;
        Iterator<VictimIndex.Entry<BlockId>> order = indexes.get(mode).iterator();
        while (order.hasNext() && availableBytes < Math.max(space, wanted)) {
            VictimIndex.Entry<BlockId> entry = order.next();
            if (!mayLeave(entry, incoming, block, worth, isOnDisk)) {
                if (admission && (entry.isReferenced || isOnDisk)) {
                    break; // the order is by rank: nobody behind may leave either
                }
                if (++numSpared > MOST_SPARED) {
                    break;
                }
                continue;
            }
            if (choice.freedBytes >= space) {
                availableBytes += entry.sizeBytes; // enough for now; only look whether more could follow
            } else if (lock.test(entry.block)) {
                choice.victims.add(entry.block);
                choice.freedBytes += entry.sizeBytes;
                choice.numReferenced += entry.isReferenced ? 1 : 0;
                availableBytes += entry.sizeBytes;
            }
        }
        choice.isEnough = choice.freedBytes >= space && availableBytes >= Math.max(space, wanted);
        return choice;
    }

    private boolean mayLeave(
            VictimIndex.Entry<BlockId> entry, BlockId incoming, long block, double[] worth, boolean isOnDisk) {
        if (incoming == null) {
            return true;
        }
        boolean isSibling = block >= 0 && entry.key >= 0 && Keys.rdd(entry.key) == Keys.rdd(block);
        if (!admission) {
            return !isSibling;
        }
        boolean isFree = !entry.isReferenced && !isOnDisk && !(isSibling && table.rc(block) == 0);
        return block < 0 || isFree || isLower(entry, worth[0], worth[1]);
    }

    private static boolean isLower(VictimIndex.Entry<BlockId> entry, double first, double second) {
        return entry.first < first || entry.first == first && entry.second < second;
    }

    // Questions -----------------------------------------------------------------------------------------------------

    /** How large the block will be, as far as others of its RDD tell; 0 if there are none. */
    synchronized long expectedBytes(BlockId id) {
        long block = key(id);
        Seen seen = block < 0 ? null : seenOfRdd.get(Keys.rdd(block));
        return seen == null ? 0 : (long) seen.sizeBytes;
    }

    /** The memory that Spark's own rule would have now. */
    synchronized void hasRoomFor(long poolBytes) {
        shadow.capacityBytes = poolBytes;
    }

    synchronized long stockHits() {
        return shadow.hits;
    }

    synchronized double savedS() {
        return shadow.savedS;
    }

    synchronized long savedBytes() {
        return shadow.savedBytes;
    }

    synchronized long inactiveBytes() {
        return indexes.values().stream().mapToLong(VictimIndex::inactiveBytes).sum();
    }

    synchronized int numStored() {
        return indexes.values().stream().mapToInt(VictimIndex::size).sum();
    }

    synchronized int numGroups() {
        return table.numGroups();
    }

    // ---------------------------------------------------------------------------------------------------------------

    /** The key of an RDD block, or -1 for any other: a broadcast, a result, a stream. */
    static long key(BlockId id) {
        return id instanceof RDDBlockId
                ? Keys.block(((RDDBlockId) id).rddId(), ((RDDBlockId) id).splitIndex())
                : -1;
    }

    /** Size and cost where they are known, else as other blocks of the RDD. What a disk keeps is not computed again. */
    private void describe(long block, long sizeBytes, double costS) {
        Seen seen = seenOfRdd.computeIfAbsent(Keys.rdd(block), unseen -> new Seen());
        seen.sizeBytes = Seen.average(seen.sizeBytes, sizeBytes);
        if (comingFromDisk.contains(block)) {
            seen.readS = Seen.average(seen.readS, costS);
        } else {
            seen.computeS = Seen.average(seen.computeS, costS);
        }
        double size = sizeBytes > 0 ? sizeBytes : Math.max(1, seen.sizeBytes);
        double cost = lineage.isOnDisk(block) ? seen.readS : seen.computeS;
        table.describe(block, (long) size, cost > 0 ? cost : size * DEFAULT_COST_S_PER_BYTE);
    }

    /** What is no block of an RDD leaves last: every task may need a broadcast. */
    private double first(long block) {
        return block < 0 ? Double.POSITIVE_INFINITY : rank.first(block);
    }

    private double second(long block) {
        return block < 0 ? 0 : rank.second(block);
    }

    private boolean isReferenced(long block) {
        return block < 0 || table.rc(block) > 0;
    }

    private void flush() {
        for (long block : dirty) {
            BlockId id = stored.get(block);
            for (VictimIndex<BlockId> index : id == null ? List.<VictimIndex<BlockId>>of() : indexes.values()) {
                index.rank(id, first(block), second(block), isReferenced(block));
            }
        }
        dirty.clear();
    }
}
