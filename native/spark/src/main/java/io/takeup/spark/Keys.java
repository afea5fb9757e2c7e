package io.takeup.spark;

/**
 * Blocks and consumers as long numbers, so that messages between JVMs are plain arrays.
 *
 * <pre>
 * block     0 0 rdd  (30 bits) partition (32 bits); as a consumer: whoever computes this block
 * expected  0 1 ...            one more reader of the block that experience lets us expect
 * task      1 0 stage          the task of a stage that computes the partition
 * future    1 1 number         a task of a job that a profile foretells
 * </pre>
 */
final class Keys {
    private static final long TASK = 1L << 63;
    private static final long EXPECTED = 1L << 62;

    private Keys() {}

    static long block(int rdd, int partition) {
        return ((long) rdd << 32) | partition;
    }

    static long expected(long block) {
        return EXPECTED | block;
    }

    static long task(int stage, int partition) {
        return TASK | block(stage, partition);
    }

    static long future(long number) {
        return TASK | EXPECTED | number;
    }

    static boolean isBlock(long key) {
        return (key & (TASK | EXPECTED)) == 0;
    }

    /** A task of a job that runs now. */
    static boolean isTask(long key) {
        return (key & TASK) != 0 && (key & EXPECTED) == 0;
    }

    static boolean isFuture(long key) {
        return (key & TASK) != 0 && (key & EXPECTED) != 0;
    }

    static int rdd(long block) {
        return (int) (block >>> 32);
    }

    static int partition(long block) {
        return (int) block;
    }
}
