package io.takeup.bench;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.SplittableRandom;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.java.function.Function2;
import org.apache.spark.storage.StorageLevel;

/** RDDs of one large array per partition: its content comes from a seed, its making costs what is asked. */
final class Blocks {
    private Blocks() {}

    static JavaRDD<double[]> make(JavaSparkContext context, int numBlocks, int numValues, int rounds, long seed) {
        List<Integer> places = new ArrayList<>();
        for (int place = 0; place < numBlocks; place++) {
            places.add(place);
        }
        Function2<Integer, Iterator<Integer>, Iterator<double[]>> fill =
                (place, unused) -> Arrays.asList(block(numValues, rounds, seed * 1_000_003 + place)).iterator();
        return context.parallelize(places, numBlocks).mapPartitionsWithIndex(fill, true);
    }

    static double[] block(int numValues, int rounds, long seed) {
        SplittableRandom random = new SplittableRandom(seed);
        double[] values = new double[numValues];
        for (int round = 0; round < rounds; round++) {
            for (int index = 0; index < numValues; index++) {
                values[index] += random.nextInt(1 << 10);
            }
        }
        return values;
    }

    static StorageLevel level(String name) {
        return StorageLevel.fromString(name);
    }

    /** A sum that does not depend on the order: the values are whole numbers. */
    static double sum(JavaRDD<double[]> blocks) {
        return blocks.map(values -> Arrays.stream(values).sum()).reduce(Double::sum);
    }
}
