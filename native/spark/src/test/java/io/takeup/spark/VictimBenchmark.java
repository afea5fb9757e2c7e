package io.takeup.spark;

import java.util.Arrays;
import java.util.SplittableRandom;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.RDDBlockId;

/** How long a choice of victims takes with many blocks in memory: prints policy, median and 99th percentile in us. */
public final class VictimBenchmark {
    private static final int NUM_BLOCKS = 100_000;
    private static final int NUM_CHOICES = 5_000;

    private VictimBenchmark() {}

    public static void main(String[] arguments) {
        for (String policy : new String[] {"lrc", "lerc", "mrd", "furthest_next_use", "dag"}) {
            double[] choicesUs = measure(policy);
            System.out.printf(
                    "%s %.2f %.2f%n", policy, choicesUs[NUM_CHOICES / 2], choicesUs[(int) (NUM_CHOICES * 0.99)]);
        }
    }

    /** In a full memory one block leaves for every one that comes, readers come and go, and blocks are read. */
    private static double[] measure(String policy) {
        SplittableRandom random = new SplittableRandom(1);
        BlockRanks ranks = new BlockRanks(policy, true, 1L << 30);
        ranks.hasRoomFor(1000L * NUM_BLOCKS);
        for (int number = 0; number < NUM_BLOCKS; number++) {
            ranks.stored(id(number), 1000, MemoryMode.ON_HEAP, 0.001);
            open(ranks, number, random);
        }
        double[] timesUs = new double[NUM_CHOICES];
        for (int round = 0; round < 2 * NUM_CHOICES; round++) {
            BlockId incoming = id(NUM_BLOCKS + round);
            ranks.arriving(incoming, -1, false, false);
            open(ranks, NUM_BLOCKS + round, random);
            ranks.taskSucceeded(Keys.task(1, random.nextInt(NUM_BLOCKS + round)));
            ranks.read(id(random.nextInt(NUM_BLOCKS)), true);
            long beganNs = System.nanoTime();
            BlockRanks.Choice choice = ranks.choose(incoming, false, 1000, 1000, MemoryMode.ON_HEAP, id -> true);
            timesUs[round % NUM_CHOICES] = (System.nanoTime() - beganNs) / 1e3; // the first half warms up
            choice.victims.forEach(ranks::removed);
            if (choice.isEnough) {
                ranks.stored(incoming, 1000, MemoryMode.ON_HEAP, 0.001);
            }
        }
        Arrays.sort(timesUs);
        return timesUs;
    }

    private static void open(BlockRanks ranks, int number, SplittableRandom random) {
        long block = BlockRanks.key(id(number));
        long peer = BlockRanks.key(id(random.nextInt(number + 1)));
        long[] blocks = {block, peer};
        GroupTable.Group group =
                new GroupTable.Group(Keys.task(1, number), blocks, random.nextInt(1 << 30), number % 50);
        ranks.apply(Messages.open(java.util.List.of(group)));
    }

    private static BlockId id(int number) {
        return new RDDBlockId(number / 1000, number % 1000);
    }
}
