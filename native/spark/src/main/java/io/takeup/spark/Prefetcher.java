package io.takeup.spark;

import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.spark.memory.MemoryManager;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.BlockManager;
import org.apache.spark.storage.BlockResult;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.collection.Iterator;

/**
 * Reads blocks back from disk before the tasks that need them begin: one at a time, the one read next first.
 *
 * <p>Spark itself puts what is read from disk into memory. Only free room is used for it: nothing leaves.
 */
final class Prefetcher {
    private static final Logger LOG = LoggerFactory.getLogger(Prefetcher.class);

    private final MemoryManager memory;
    private final BlockManager blocks;
    private final BlockRanks ranks;
    private final Counters counters;
    private final AtomicBoolean isBusy = new AtomicBoolean();
    private final ExecutorService thread = Executors.newSingleThreadExecutor(Prefetcher::daemon);

    Prefetcher(MemoryManager memory, BlockManager blocks, BlockRanks ranks, Counters counters) {
        this.memory = memory;
        this.blocks = blocks;
        this.ranks = ranks;
        this.counters = counters;
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work, "takeup-prefetch");
        thread.setDaemon(true);
        return thread;
    }

    /** Something has changed: there may be a block to bring back. Returns at once. */
    void consider() {
        if (isBusy.compareAndSet(false, true)) {
            thread.execute(this::bringBack);
        }
    }

    private void bringBack() {
        try {
            for (BlockId id = next(); id != null; id = next()) {
                read(id);
            }
        } catch (RuntimeException error) { // the block went away meanwhile, or its disk did; its readers will see to it
            LOG.debug("takeup: a block was not brought back", error);
        } finally {
            isBusy.set(false);
        }
    }

    private BlockId next() {
        return ranks.takeNextFromDisk(memory.maxOnHeapStorageMemory() - memory.storageMemoryUsed());
    }

    /** Reads to the end: that releases Spark's lock on the block. */
    private void read(BlockId id) {
        Option<BlockResult> found = blocks.getLocalValues(id);
        if (found.isDefined()) {
            Iterator<?> values = found.get().data();
            while (values.hasNext()) {
                values.next();
            }
            counters.add(Counters.PREFETCHES, blocks.memoryStore().contains(id) ? 1 : 0);
        }
    }
}
