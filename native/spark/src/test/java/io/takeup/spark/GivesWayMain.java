package io.takeup.spark;

import java.util.Collections;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.JavaSparkContext;

/**
 * Tables that do not fit, made with nothing lost, with a large loss and with that made up for: prints the choices of the
 * policy, all evictions, how often Spark's own rule took over, and failures, after each of them.
 */
public final class GivesWayMain {
    private static final int NUM_BLOCKS = 20;
    private static final int BLOCK_BYTES = 4 << 20;

    private GivesWayMain() {}

    public static void main(String[] arguments) throws Exception {
        SparkConf conf = new SparkConf().setMaster("local[2]").setAppName("gives way");
        conf.set("spark.plugins", TakeupPlugin.class.getName()).set(Settings.POLICY, "dag");
        conf.set("spark.ui.enabled", "false").set("spark.driver.host", "127.0.0.1").set("spark.memory.fraction", "0.2");
        try (JavaSparkContext context = new JavaSparkContext(conf)) {
            TakeupStore store = (TakeupStore) SparkEnv.get().blockManager().memoryStore();
            for (double savedS : new double[] {0, -1e6, 0}) {
                lookAt(store, context, savedS);
                cache(context);
                Counters counters = (Counters) Scala.field(store, TakeupStore.class, "counters");
                System.out.println(counters.get(Counters.CHOICES) + " " + counters.get(Counters.EVICTIONS) + " "
                        + counters.get(Counters.GAVE_WAY) + " " + counters.get(Counters.FAILURES));
            }
        }
    }

    /** What was saved is looked at whenever a task ends. */
    private static void lookAt(TakeupStore store, JavaSparkContext context, double savedS) throws Exception {
        Object ranks = Scala.field(store, TakeupStore.class, "ranks");
        Shadow shadow = (Shadow) Scala.field(ranks, BlockRanks.class, "shadow");
        shadow.savedS = savedS;
        context.parallelize(Collections.nCopies(2, 1), 2).count();
    }

    private static void cache(JavaSparkContext context) {
        for (int round = 0; round < 2; round++) {
            context.parallelize(Collections.nCopies(NUM_BLOCKS, 1), NUM_BLOCKS)
                    .map(number -> new byte[BLOCK_BYTES])
                    .cache()
                    .count();
        }
    }
}
