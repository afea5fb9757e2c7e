package io.takeup.spark;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.memory.MemoryManager;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.BlockInfo;
import org.apache.spark.storage.BlockInfoManager;
import org.apache.spark.storage.BlockManager;
import org.apache.spark.storage.StorageLevel;
import org.apache.spark.storage.memory.DeserializedMemoryEntry;
import org.apache.spark.storage.memory.MemoryEntry;
import org.apache.spark.storage.memory.MemoryStore;
import org.apache.spark.storage.memory.PartiallyUnrolledIterator;
import org.apache.spark.storage.memory.SerializedMemoryEntry;
import org.apache.spark.util.io.ChunkedByteBuffer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Function0;
import scala.Option;
import scala.collection.Iterator;
import scala.reflect.ClassTag;
import scala.util.Either;
import scala.util.Left;
import scala.util.Right;

/**
 * Spark's memory store with another answer to one question: who leaves when a block needs room.
 *
 * <p>Everything else is Spark's own; its private map of entries is only read. When anything goes wrong here, the store
 * says so once and decides as Spark does from then on.
 */
public final class TakeupStore extends MemoryStore {
    private static final Logger LOG = LoggerFactory.getLogger(TakeupStore.class);
    private static final long NO_TASK = -1;
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private final MemoryManager memoryManager;
    private final BlockManager blockManager;
    private final LinkedHashMap<BlockId, MemoryEntry<?>> entries;
    private final BlockRanks ranks; // null under policy lru: Spark decides, we count
    private final Counters counters;
    private final TaskLog tasks;
    private final Map<BlockId, Long> arriving = new ConcurrentHashMap<>(); // by which task attempt
    private final Map<BlockId, Double> costs = new ConcurrentHashMap<>();
    private final ThreadLocal<Long> nestedNs = ThreadLocal.withInitial(() -> 0L);
    private final ThreadLocal<Boolean> isEvicting = ThreadLocal.withInitial(() -> false);
    private volatile boolean isStock;
    private volatile boolean givesWay; // Spark decides for now, and we go on counting

    @SuppressWarnings("unchecked")
    TakeupStore(SparkEnv env, BlockManager blockManager, BlockRanks ranks, Counters counters, TaskLog tasks)
            throws ReflectiveOperationException {
        super(env.conf(), blockManager.blockInfoManager(), env.serializerManager(), env.memoryManager(), blockManager);
        this.memoryManager = env.memoryManager();
        this.blockManager = blockManager;
        this.ranks = ranks;
        this.counters = counters;
        this.tasks = tasks;
        this.isStock = ranks == null;
        this.entries = (LinkedHashMap<BlockId, MemoryEntry<?>>) Scala.field(this, MemoryStore.class, "entries");
    }

    /** Put this store in the place of Spark's, with everything that one holds. */
    void install() throws ReflectiveOperationException {
        synchronized (memoryManager) {
            replace(blockManager.memoryStore(), this);
            entries.keySet().forEach(id -> arriving.put(id, NO_TASK));
        }
        if (blockManager.memoryStore() != this) {
            throw new IllegalStateException("the block manager kept its own memory store");
        }
    }

    /** Put a store of Spark's own in the place of this one, if this one is there. */
    void uninstall(SparkEnv env) throws ReflectiveOperationException {
        giveUp(new IllegalStateException("the plug-in could not be installed"));
        synchronized (memoryManager) {
            if (blockManager.memoryStore() == this) {
                replace(this, new MemoryStore(
                        env.conf(), blockManager.blockInfoManager(), env.serializerManager(), memoryManager, blockManager));
            } else {
                memoryManager.setMemoryStore(blockManager.memoryStore());
            }
        }
    }

    @SuppressWarnings("unchecked")
    private void replace(MemoryStore old, MemoryStore other) throws ReflectiveOperationException {
        Map<BlockId, MemoryEntry<?>> present =
                (Map<BlockId, MemoryEntry<?>>) Scala.field(old, MemoryStore.class, "entries");
        Map<BlockId, MemoryEntry<?>> next =
                (Map<BlockId, MemoryEntry<?>>) Scala.field(other, MemoryStore.class, "entries");
        synchronized (present) {
            next.putAll(present);
            memoryManager.setMemoryStore(other);
            Scala.setField(blockManager, BlockManager.class, "memoryStore", other);
        }
    }

    // What comes in, is read, and leaves ---------------------------------------------------------------------------

    @Override
    public boolean reserveUnrollMemoryForThisTask(BlockId id, long memory, MemoryMode mode) {
        announce(id);
        return super.reserveUnrollMemoryForThisTask(id, memory, mode);
    }

    @Override
    public <T> boolean putBytes(
            BlockId id, long size, MemoryMode mode, Function0<ChunkedByteBuffer> bytes, ClassTag<T> tag) {
        announce(id);
        return super.putBytes(id, size, mode, bytes, tag);
    }

    /** Also measures what the block costs to compute, without the blocks that had to be made for it on the way. */
    @Override
    public <T> Either<PartiallyUnrolledIterator<T>, Object> putIteratorAsValues(
            BlockId id, Iterator<T> values, MemoryMode mode, ClassTag<T> tag) {
        if (isStock) {
            return super.putIteratorAsValues(id, values, mode, tag);
        }
        long outerNs = nestedNs.get();
        nestedNs.set(0L);
        long beganNs = THREADS.getCurrentThreadCpuTime();
        try {
            return super.putIteratorAsValues(id, values, mode, tag);
        } finally {
            long wholeNs = THREADS.getCurrentThreadCpuTime() - beganNs;
            costs.put(id, (wholeNs - nestedNs.get()) / 1e9);
            nestedNs.set(outerNs + wholeNs);
        }
    }

    private void announce(BlockId id) {
        long block = BlockRanks.key(id);
        if (block >= 0 && tasks.makes(block)) {
            counters.add(Counters.PUTS, 1);
        }
        if (!isStock && arriving.putIfAbsent(id, currentTask()) == null) {
            long poolBytes = memoryManager.maxOnHeapStorageMemory() + memoryManager.maxOffHeapStorageMemory();
            boolean keepsDiskCopy = keepsDiskCopy(id);
            boolean isOnDisk = keepsDiskCopy && blockManager.diskStore().contains(id);
            guard(() -> {
                ranks.hasRoomFor(poolBytes);
                ranks.arriving(id, currentTaskKey(), keepsDiskCopy, isOnDisk);
            });
        }
    }

    private static long currentTask() {
        TaskContext context = TaskContext.get();
        return context == null ? NO_TASK : context.taskAttemptId();
    }

    /** As the driver names it; a key of nothing outside tasks. */
    private static long currentTaskKey() {
        TaskContext context = TaskContext.get();
        return context == null ? NO_TASK : Keys.task(context.stageId(), context.partitionId());
    }

    /** A task is over: what it stored takes its place in the order, and what it did not is not coming any more. */
    void settle(long task) {
        noteStored();
        arriving.forEach((id, announcedBy) -> {
            if (announcedBy == task && !contains(id)) {
                arriving.remove(id);
                costs.remove(id);
                guard(() -> ranks.refused(id));
            }
        });
    }

    private boolean keepsDiskCopy(BlockId id) {
        Option<BlockInfo> info = blockManager.blockInfoManager().get(id);
        return info.isDefined() && info.get().level().useDisk();
    }

    @Override
    @SuppressWarnings({"rawtypes", "unchecked"}) // what the option holds is declared differently in 3.5 and 4.x
    public Option getValues(BlockId id) {
        Option values = super.getValues(id);
        noteRead(id, values);
        return values;
    }

    @Override
    public Option<ChunkedByteBuffer> getBytes(BlockId id) {
        Option<ChunkedByteBuffer> bytes = super.getBytes(id);
        noteRead(id, bytes);
        return bytes;
    }

    private void noteRead(BlockId id, Option<?> found) {
        if (found.isDefined()) {
            long block = BlockRanks.key(id);
            boolean isHit = block >= 0 && tasks.hit(block);
            if (!isStock) {
                guard(() -> ranks.read(id, isHit));
            }
        }
    }

    @Override
    public boolean remove(BlockId id) {
        boolean wasHere = super.remove(id);
        counters.add(Counters.EVICTIONS, wasHere && isEvicting.get() ? 1 : 0);
        if (!isStock && wasHere) {
            arriving.remove(id);
            guard(() -> ranks.removed(id));
        }
        return wasHere;
    }

    // Who leaves ---------------------------------------------------------------------------------------------------

    @Override
    public long evictBlocksToFreeSpace(Option<BlockId> incoming, long space, MemoryMode mode) {
        if (!isStock && !givesWay) {
            synchronized (memoryManager) {
                BlockRanks.Choice choice = choose(incoming.isDefined() ? incoming.get() : null, space, mode);
                if (choice != null) {
                    return choice.isEnough ? drop(choice) : refuse(choice, incoming);
                }
            }
        }
        isEvicting.set(true);
        try {
            return super.evictBlocksToFreeSpace(incoming, space, mode);
        } finally {
            isEvicting.set(false);
        }
    }

    /** The victims, locked for writing; null if that failed and Spark must decide. */
    private BlockRanks.Choice choose(BlockId incoming, long space, MemoryMode mode) {
        long beganNs = System.nanoTime();
        BlockRanks.Choice[] choice = {null};
        Set<BlockId> locked = new LinkedHashSet<>();
        boolean worked = guard(() -> {
            noteStored();
            long wanted = incoming == null ? 0 : ranks.expectedBytes(incoming) - currentUnrollMemoryForThisTask();
            boolean isOnDisk = incoming != null && blockManager.diskStore().contains(incoming);
            choice[0] = ranks.choose(incoming, isOnDisk, space, wanted, mode, id -> lock(id) && locked.add(id));
        });
        if (!worked) {
            locked.forEach(this::unlock);
            return null;
        }
        counters.add(Counters.CHOICES, 1);
        counters.add(Counters.CHOICE_NS, System.nanoTime() - beganNs);
        return choice[0];
    }

    /** Blocks that have come in since the last call take their place in the order. */
    private void noteStored() {
        for (BlockId id : arriving.keySet()) {
            MemoryEntry<?> entry;
            synchronized (entries) {
                entry = entries.containsKey(id) ? entries.get(id) : null;
            }
            if (entry != null) {
                Double costS = costs.remove(id);
                ranks.stored(id, entry.size(), entry.memoryMode(), costS == null ? 0 : costS);
                arriving.remove(id);
            }
        }
    }

    private long drop(BlockRanks.Choice choice) {
        int numDropped = 0;
        try {
            for (BlockId id : choice.victims) {
                MemoryEntry<?> entry;
                synchronized (entries) {
                    entry = entries.get(id);
                }
                if (entry != null) {
                    drop(id, entry);
                    afterDropAction(id);
                }
                numDropped++;
            }
        } finally {
            choice.victims.subList(numDropped, choice.victims.size()).forEach(this::unlock);
        }
        counters.add(Counters.EVICTIONS, numDropped);
        counters.add(Counters.EVICTIONS_WITH_REFERENCES, choice.numReferenced);
        counters.add(Counters.EVICTED_BYTES, choice.freedBytes);
        return choice.freedBytes;
    }

    private <T> void drop(BlockId id, MemoryEntry<T> entry) {
        Either<Object, ChunkedByteBuffer> data = entry instanceof DeserializedMemoryEntry
                ? new Left<>(((DeserializedMemoryEntry<T>) entry).value())
                : new Right<>(((SerializedMemoryEntry<T>) entry).buffer());
        StorageLevel level = blockManager.dropFromMemory(id, () -> data, entry.classTag());
        if (level.isValid()) {
            guard(() -> ranks.leftOnDisk(id));
            unlock(id);
        } else {
            blockManager.blockInfoManager().removeBlock(id);
        }
    }

    private long refuse(BlockRanks.Choice choice, Option<BlockId> incoming) {
        choice.victims.forEach(this::unlock);
        if (incoming.isDefined()) {
            BlockId id = incoming.get();
            counters.add(Counters.REFUSED, 1);
            arriving.remove(id);
            costs.remove(id);
            guard(() -> ranks.refused(id));
        }
        return 0;
    }

    private boolean lock(BlockId id) {
        return blockManager.blockInfoManager().lockForWriting(id, false).isDefined();
    }

    private void unlock(BlockId id) {
        BlockInfoManager infos = blockManager.blockInfoManager();
        infos.unlock(id, infos.unlock$default$2());
    }

    // --------------------------------------------------------------------------------------------------------------

    /** Our own bookkeeping must never harm a task: on the first error Spark's own order rules for good. */
    private boolean guard(Runnable bookkeeping) {
        try {
            bookkeeping.run();
            return true;
        } catch (RuntimeException | LinkageError | StackOverflowError error) {
            giveUp(error);
            return false;
        }
    }

    /** Not an error: the policy does not suit what the application does now. */
    void giveWay(boolean toSpark) {
        if (toSpark && !givesWay) {
            counters.add(Counters.GAVE_WAY, 1);
        }
        givesWay = toSpark;
    }

    void giveUp(Throwable error) {
        if (!isStock) {
            isStock = true;
            counters.add(Counters.FAILURES, 1);
            counters.set(Counters.INSTALLED, 0);
            LOG.warn("takeup: eviction is Spark's own from now on, because {}", error.toString(), error);
        }
    }

    boolean isStock() {
        return isStock;
    }
}
