package io.takeup.spark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * What Spark's own rule would have in memory, on ids and sizes alone: the least recent block leaves, but never a sibling
 * of the one that comes in. What its tasks would have found and ours did not, or the other way round, is what the policy
 * costs or saves.
 */
final class Shadow {
    private static final long UNROLL_BYTES = 1 << 20; // what Spark makes free for a block that it begins to store

    private final LinkedHashMap<Long, Long> sizes = new LinkedHashMap<>(16, 0.75f, true); // least recent first
    private final Map<Integer, Long> bytesOfRdd = new HashMap<>();
    private long usedBytes;
    long capacityBytes;
    long hits;
    double savedS;
    long savedBytes; // of reading back from disk

    /** A task found the block in our memory. */
    void found(long block, long sizeBytes, double costS, boolean isOnDisk) {
        if (sizes.get(block) != null) {
            hits++;
            return;
        }
        savedS += costS;
        savedBytes += isOnDisk ? sizeBytes : 0;
        put(block, sizeBytes);
    }

    /** A task made the block, for the first time or again, or read it back from disk. */
    void made(long block, long sizeBytes, double costS, boolean isOnDisk) {
        if (sizes.get(block) == null) {
            put(block, sizeBytes);
            return;
        }
        hits++;
        savedS -= costS;
        savedBytes -= isOnDisk ? sizeBytes : 0;
    }

    /** Now its size is known. */
    void stored(long block, long sizeBytes) {
        forget(block);
        put(block, sizeBytes);
    }

    void forget(long block) {
        Long sizeBytes = sizes.remove(block);
        if (sizeBytes != null) {
            count(block, -sizeBytes);
        }
    }

    private void put(long block, long sizeBytes) {
        long siblingBytes = bytesOfRdd.getOrDefault(Keys.rdd(block), 0L);
        long neededBytes = Math.max(sizeBytes, UNROLL_BYTES);
        if (sizeBytes <= 1 || siblingBytes + neededBytes > capacityBytes) { // a size of 1 is none
            return;
        }
        Iterator<Map.Entry<Long, Long>> order = sizes.entrySet().iterator();
        while (usedBytes + neededBytes > capacityBytes && order.hasNext()) {
            Map.Entry<Long, Long> entry = order.next();
            if (Keys.rdd(entry.getKey()) != Keys.rdd(block)) {
                order.remove();
                count(entry.getKey(), -entry.getValue());
            }
        }
        sizes.put(block, sizeBytes);
        count(block, sizeBytes);
    }

    private void count(long block, long bytes) {
        usedBytes += bytes;
        bytesOfRdd.compute(Keys.rdd(block), (rdd, old) -> {
            long now = (old == null ? 0 : old) + bytes;
            return now == 0 ? null : now;
        });
    }
}
