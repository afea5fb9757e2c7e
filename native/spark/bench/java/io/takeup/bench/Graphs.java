package io.takeup.bench;

import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.graphx.Edge;
import org.apache.spark.graphx.Graph;
import org.apache.spark.graphx.lib.ConnectedComponents;
import org.apache.spark.graphx.lib.PageRank;
import org.apache.spark.graphx.lib.SVDPlusPlus;
import org.apache.spark.graphx.lib.ShortestPaths;
import org.apache.spark.rdd.RDD;
import org.apache.spark.storage.StorageLevel;
import scala.Tuple2;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/** GraphX as Spark ships it, on graphs with log-normal degrees. Each returns a checksum. */
public final class Graphs {
    private static final double MU = 1.5;
    private static final double SIGMA = 1.3;
    private static final ClassTag<Object> ANY = ClassTag$.MODULE$.apply(Object.class);

    private Graphs() {}

    public static double pageRank(SparkContext context, int numVertices, int numParts, int numIterations) {
        return sum(PageRank.run(graph(context, numVertices, numParts), numIterations, 0.15, ANY, ANY));
    }

    public static double components(SparkContext context, int numVertices, int numParts, int numIterations) {
        return sum(ConnectedComponents.run(graph(context, numVertices, numParts), numIterations, ANY, ANY));
    }

    /** Shortest paths to three vertices: one Pregel loop. */
    public static double pregel(SparkContext context, int numVertices, int numParts) {
        List<Object> landmarks = List.of(1L, 2L, 3L);
        Graph<?, Object> paths = ShortestPaths.run(
                graph(context, numVertices, numParts), CollectionConverters.asScala(landmarks).toSeq(), ANY);
        return (double) paths.vertices()
                .toJavaRDD()
                .map(vertex -> (long) ((Tuple2<?, ?>) vertex)._2().hashCode())
                .reduce(Long::sum);
    }

    public static double svdPlusPlus(
            SparkContext context, int numUsers, int numItems, int numParts, int numIterations) {
        JavaRDD<Edge<Object>> ratings = ratings(new JavaSparkContext(context), numUsers, numItems, numParts);
        SVDPlusPlus.Conf conf = new SVDPlusPlus.Conf(10, numIterations, 0.0, 5.0, 0.007, 0.007, 0.005, 0.015);
        Object mean = SVDPlusPlus.run(ratings.rdd(), conf)._2();
        return Math.rint((double) mean * 1e6);
    }

    private static Graph<Object, Object> graph(SparkContext context, int numVertices, int numParts) {
        JavaSparkContext java = new JavaSparkContext(context);
        RDD<Edge<Object>> edges = numbers(java, numVertices, numParts)
                .flatMap(vertex -> edges(vertex, numVertices).iterator())
                .rdd();
        StorageLevel level = StorageLevel.MEMORY_ONLY();
        return Graph.fromEdges(edges, 1L, level, level, ANY, ANY);
    }

    private static List<Edge<Object>> edges(int vertex, int numVertices) {
        java.util.Random random = new java.util.Random(vertex);
        int degree = (int) Math.min(numVertices / 10, Math.exp(MU + SIGMA * random.nextGaussian()));
        List<Edge<Object>> edges = new ArrayList<>();
        for (int edge = 0; edge <= degree; edge++) {
            edges.add(new Edge<>(vertex, random.nextInt(numVertices), 1L));
        }
        return edges;
    }

    private static JavaRDD<Edge<Object>> ratings(JavaSparkContext context, int numUsers, int numItems, int numParts) {
        return numbers(context, numUsers, numParts).flatMap(user -> {
            SplittableRandom random = new SplittableRandom(user);
            List<Edge<Object>> rated = new ArrayList<>();
            for (int count = 0; count < 8; count++) {
                rated.add(new Edge<>(user, numUsers + random.nextInt(numItems), 1.0 + random.nextInt(5)));
            }
            return rated.iterator();
        });
    }

    private static JavaRDD<Integer> numbers(JavaSparkContext context, int count, int numParts) {
        List<Integer> numbers = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            numbers.add(number);
        }
        return context.parallelize(numbers, numParts);
    }

    /** Whole thousandths, so that the order of addition does not matter. */
    private static double sum(Graph<?, ?> graph) {
        return (double) graph.vertices()
                .toJavaRDD()
                .map(vertex -> Math.round(((Number) ((Tuple2<?, ?>) vertex)._2()).doubleValue() * 1000))
                .reduce(Long::sum);
    }
}
