package io.takeup.spark;

import java.util.ArrayList;
import java.util.List;

/**
 * What driver and executors say to each other: arrays of JDK types only, because a class of our own may be unknown to
 * the class loader that reads the message.
 */
final class Messages {
    static final String OPEN = "open";
    static final String CLOSE = "close";
    static final String LINEAGE = "lineage";
    static final String STATE = "state";
    static final String FORGET = "forget";
    static final String EXPECT = "expect";
    static final String ALL = "all";
    static final String PACKED = "packed";
    static final String FLUSH = "flush";
    static final String HELLO = "hello";
    static final String TASKS = "tasks";

    /** One consumer with the blocks it reads, its position and its stage. */
    interface ConsumerHandler {
        void accept(long consumer, long[] blocks, double position, int stage);
    }

    /** One block with the blocks it is computed from. */
    interface LineageHandler {
        void accept(long block, long[] parents);
    }

    /** One block with the position at which it will probably be read. */
    interface ExpectedHandler {
        void accept(long block, double position, int stage);
    }

    private Messages() {}

    static Object[] open(List<GroupTable.Group> groups) {
        int count = groups.size();
        long[] consumers = new long[count];
        double[] positions = new double[count];
        int[] stages = new int[count];
        List<long[]> lists = new ArrayList<>(count);
        for (int index = 0; index < count; index++) {
            GroupTable.Group group = groups.get(index);
            consumers[index] = group.consumer;
            positions[index] = group.position;
            stages[index] = group.stage;
            lists.add(group.blocks);
        }
        return new Object[] {OPEN, consumers, lists.toArray(new long[0][]), positions, stages};
    }

    /** How many things the message names, where it can be acted on in slices; else 1. */
    static int count(Object[] message) {
        boolean isLong = message[0].equals(OPEN) || message[0].equals(CLOSE) || message[0].equals(LINEAGE);
        return isLong ? ((long[]) message[1]).length : message[0].equals(EXPECT) ? ((int[]) message[1])[1] : 1;
    }

    static void forEachConsumer(Object[] message, int from, int to, ConsumerHandler handler) {
        long[] consumers = (long[]) message[1];
        for (int index = from; index < to; index++) {
            handler.accept(
                    consumers[index],
                    ((long[][]) message[2])[index],
                    ((double[]) message[3])[index],
                    ((int[]) message[4])[index]);
        }
    }

    static Object[] lineage(long[] blocks, long[][] parents) {
        return new Object[] {LINEAGE, blocks, parents};
    }

    static void forEachLineage(Object[] message, int from, int to, LineageHandler handler) {
        long[] blocks = (long[]) message[1];
        for (int index = from; index < to; index++) {
            handler.accept(blocks[index], ((long[][]) message[2])[index]);
        }
    }

    static Object[] close(long... consumers) {
        return new Object[] {CLOSE, consumers};
    }

    /** Blocks that came into memory, blocks that are in none any more, and those of the first that disks keep too. */
    static Object[] state(long[] cached, long[] lost, long[] onDisk) {
        return new Object[] {STATE, cached, lost, onDisk};
    }

    /** Several messages as one: what each costs on its way is more than what it says. */
    static Object[] all(List<Object[]> messages) {
        return new Object[] {ALL, messages.toArray()};
    }

    /** The same for its way to an executor. */
    static Object[] packed(Object[] message) {
        return new Object[] {PACKED, Wire.packed(message)};
    }

    static Object[] forget(long[] blocks) {
        return new Object[] {FORGET, blocks};
    }

    /** All blocks of an RDD will probably be read, in the order of their partitions, from this position on. */
    static Object[] expect(int rdd, int numPartitions, double position, double step, int stage) {
        return new Object[] {EXPECT, new int[] {rdd, numPartitions, stage}, new double[] {position, step}};
    }

    static void forEachExpected(Object[] message, int from, int to, ExpectedHandler handler) {
        int[] what = (int[]) message[1];
        double[] where = (double[]) message[2];
        for (int partition = from; partition < to; partition++) {
            handler.accept(Keys.block(what[0], partition), where[0] + partition * where[1], what[2]);
        }
    }
}
