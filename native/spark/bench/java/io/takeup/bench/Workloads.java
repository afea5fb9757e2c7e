package io.takeup.bench;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.TreeSet;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;

/** Jobs over cached blocks. Each returns a checksum that no policy may change. */
public final class Workloads {
    private Workloads() {}

    /** Several tenants load two RDDs each, then each zips its two: every task needs both its blocks. */
    public static double zip(
            SparkContext scala, int numTenants, int numBlocks, int numValues, int rounds, String level) {
        JavaSparkContext context = new JavaSparkContext(scala);
        List<JavaRDD<double[]>> left = new ArrayList<>();
        List<JavaRDD<double[]>> right = new ArrayList<>();
        for (int side = 0; side < 2; side++) {
            for (int tenant = 0; tenant < numTenants; tenant++) {
                long seed = 2 * tenant + side;
                JavaRDD<double[]> blocks =
                        Blocks.make(context, numBlocks, numValues, rounds, seed).persist(Blocks.level(level));
                blocks.count();
                (side == 0 ? left : right).add(blocks);
            }
        }
        double sum = 0;
        for (int tenant = 0; tenant < numTenants; tenant++) {
            sum += Blocks.sum(left.get(tenant).zip(right.get(tenant)).map(both -> add(both._1(), both._2(), 1)));
        }
        return sum;
    }

    /** A large RDD read in every iteration, and a small one that each iteration makes anew from the last. */
    public static double iterate(
            SparkContext scala, int numBlocks, int numValues, int rounds, int numIterations, String level) {
        JavaSparkContext context = new JavaSparkContext(scala);
        JavaRDD<double[]> links = Blocks.make(context, numBlocks, numValues, rounds, 1).persist(Blocks.level(level));
        JavaRDD<double[]> ranks = Blocks.make(context, numBlocks, numValues / 4, 1, 2).persist(Blocks.level(level));
        for (int iteration = 0; iteration < numIterations; iteration++) {
            ranks = ranks.zip(links).map(both -> add(both._1(), both._2(), 4)).persist(Blocks.level(level));
            ranks.count();
        }
        return Blocks.sum(ranks);
    }

    /** Passes over one RDD that does not fit. */
    public static double scan(
            SparkContext scala, int numBlocks, int numValues, int rounds, int numPasses, String level) {
        JavaSparkContext context = new JavaSparkContext(scala);
        JavaRDD<double[]> blocks = Blocks.make(context, numBlocks, numValues, rounds, 3).persist(Blocks.level(level));
        double sum = 0;
        for (int pass = 0; pass < numPasses; pass++) {
            sum += Blocks.sum(blocks);
        }
        return sum;
    }

    /** Many RDDs of small blocks; every job zips two of them, some much more often than others. */
    public static double pairs(SparkContext scala, int numRdds, int numBlocks, int numValues, int rounds, int numJobs) {
        JavaSparkContext context = new JavaSparkContext(scala);
        List<JavaRDD<double[]>> all = new ArrayList<>();
        for (int number = 0; number < numRdds; number++) {
            all.add(Blocks.make(context, numBlocks, numValues, rounds, 100 + number).persist(Blocks.level("MEMORY_ONLY")));
        }
        SplittableRandom random = new SplittableRandom(7);
        double sum = 0;
        for (int job = 0; job < numJobs; job++) {
            JavaRDD<double[]> one = all.get((int) (numRdds * Math.pow(random.nextDouble(), 2)));
            JavaRDD<double[]> other = all.get(random.nextInt(numRdds));
            sum += Blocks.sum(one.zip(other).map(both -> add(both._1(), both._2(), 1)));
        }
        return sum;
    }

    /** A loop over two RDDs that forgets its lineage every other round, and unpersists what it has left behind. */
    public static double checkpoints(
            SparkContext scala, int numBlocks, int numValues, int rounds, int numIterations) {
        JavaSparkContext context = new JavaSparkContext(scala);
        JavaRDD<double[]> links =
                Blocks.make(context, numBlocks, numValues, rounds, 8).persist(Blocks.level("MEMORY_ONLY"));
        JavaRDD<double[]> state = Blocks.make(context, numBlocks, numValues, 1, 9).persist(Blocks.level("MEMORY_ONLY"));
        for (int iteration = 0; iteration < numIterations; iteration++) {
            JavaRDD<double[]> next = state.zip(links).map(both -> add(both._1(), both._2(), 1));
            next.persist(Blocks.level("MEMORY_AND_DISK"));
            if (iteration % 2 == 1) {
                next.rdd().localCheckpoint();
            }
            next.count();
            state.unpersist(false);
            state = next;
        }
        return Blocks.sum(state);
    }

    /** An RDD that another pushes to disk; when that one has gone, passes over the first whose tasks mostly wait. */
    public static double comeBack(SparkContext scala, int numBlocks, int numValues, int numPasses, int waitMs) {
        JavaSparkContext context = new JavaSparkContext(scala);
        JavaRDD<double[]> first =
                Blocks.make(context, numBlocks, numValues, 1, 5).persist(Blocks.level("MEMORY_AND_DISK"));
        double sum = Blocks.sum(first);
        for (int pass = 0; pass < numPasses; pass++) {
            JavaRDD<double[]> other =
                    Blocks.make(context, numBlocks, numValues, 1, 6 + pass).persist(Blocks.level("MEMORY_AND_DISK"));
            sum += Blocks.sum(other);
            other.unpersist(true);
            sum += Blocks.sum(first.map(values -> afterWaiting(values, waitMs)));
        }
        return sum;
    }

    private static double[] afterWaiting(double[] values, int waitMs) throws InterruptedException {
        Thread.sleep(waitMs); // for a database, say
        return values;
    }

    /** The same number of values as `one`, each with every `step`-th of `other`, modulo a million. */
    private static double[] add(double[] one, double[] other, int step) {
        double[] sum = Arrays.copyOf(one, one.length);
        for (int index = 0; index < sum.length; index++) {
            sum[index] = (sum[index] + other[index * step]) % 1_000_000;
        }
        return sum;
    }

    /** Passes over RDDs that are unpersisted while another thread reads them. */
    public static double unpersistInFlight(SparkContext scala, int numBlocks, int numValues, int rounds)
            throws InterruptedException {
        JavaSparkContext context = new JavaSparkContext(scala);
        double[] sums = new double[3];
        for (int pass = 0; pass < sums.length; pass++) {
            JavaRDD<double[]> blocks =
                    Blocks.make(context, numBlocks, numValues, rounds, 4).persist(Blocks.level("MEMORY_ONLY"));
            blocks.count();
            int which = pass;
            Thread reader = new Thread(() -> sums[which] = Blocks.sum(blocks.zip(blocks).map(both -> both._1())));
            reader.start();
            Thread.sleep(50L * pass);
            blocks.unpersist(false);
            reader.join();
        }
        return Arrays.stream(sums).sum();
    }

    /** The class of the memory store in every process that runs one of these tasks. */
    public static String storeClasses(SparkContext scala, int numTasks) {
        List<Integer> numbers = new ArrayList<>();
        for (int number = 0; number < numTasks; number++) {
            numbers.add(number);
        }
        return new TreeSet<>(new JavaSparkContext(scala)
                        .parallelize(numbers, numTasks)
                        .map(number -> SparkEnv.get().blockManager().memoryStore().getClass().getSimpleName())
                        .collect())
                .toString();
    }
}
