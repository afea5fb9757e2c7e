package io.takeup.spark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.LongPredicate;
import org.apache.spark.Dependency;
import org.apache.spark.NarrowDependency;
import org.apache.spark.OneToOneDependency;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.ResultStage;
import org.apache.spark.scheduler.ShuffleMapStage;
import org.apache.spark.scheduler.Stage;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.storage.RDDInfo;

/**
 * Which persisted blocks the tasks of a job read, from the dependencies of the RDDs themselves: right for union,
 * coalesce, cartesian products and jobs over some partitions only. A shuffle ends the walk: behind it is another stage.
 */
final class JobGraph {
    /** One task of a stage that will really run, and the persisted blocks nearest to it. */
    static final class Task {
        final int stage;
        final int partition;
        final long[] blocks;

        Task(int stage, int partition, long[] blocks) {
            this.stage = stage;
            this.partition = partition;
            this.blocks = blocks;
        }
    }

    /** What is to be known of a persisted RDD. */
    static final class Persisted {
        final int numPartitions;
        final boolean keepsOnDisk;

        Persisted(int numPartitions, boolean keepsOnDisk) {
            this.numPartitions = numPartitions;
            this.keepsOnDisk = keepsOnDisk;
        }
    }

    /** In the order in which Spark runs them. */
    final List<Task> tasks = new ArrayList<>();
    /** Persisted RDDs seen on the way. */
    final Map<Integer, Persisted> persisted = new TreeMap<>();
    /** Of every block met for the first time, the blocks it is computed from. */
    final Map<Long, long[]> lineage = new HashMap<>();
    /** All RDDs of the job. */
    final Map<Integer, RDDInfo> infos = new HashMap<>();
    /** The RDD the job ends with; -1 before there is a stage. */
    int last = -1;

    private final Map<Integer, RDD<?>> rdds = new HashMap<>();
    private final LongPredicate isKnown;
    private final Map<Long, long[]> nearest = new HashMap<>();
    private final Map<Integer, Boolean> leadsToPersisted = new HashMap<>();
    private final Map<Integer, List<Dependency<?>>> narrow = new HashMap<>();

    /** {@code isKnown}: blocks whose inputs need not be looked up again. */
    JobGraph(LongPredicate isKnown) {
        this.isKnown = isKnown;
    }

    /** A stage of the job, as the announcement of the job describes it; the last one is added last. */
    Map<Integer, RDDInfo> describe(StageInfo stage) throws ReflectiveOperationException {
        Map<Integer, RDDInfo> own = new TreeMap<>();
        for (Object info : Scala.items(stage, "rddInfos")) {
            own.put(((RDDInfo) info).id(), (RDDInfo) info);
        }
        infos.putAll(own);
        last = own.isEmpty() ? last : Collections.max(own.keySet());
        return own;
    }

    /** Add a stage; those whose shuffle output is all there will be skipped. */
    void add(Stage stage) throws ReflectiveOperationException {
        if (stage instanceof ShuffleMapStage && ((ShuffleMapStage) stage).isAvailable()) {
            return;
        }
        for (int partition : partitions(stage)) {
            tasks.add(new Task(stage.id(), partition, nearest(stage.rdd(), partition)));
        }
    }

    /**
     * Add a stage whose RDDs cannot be walked, from their descriptions: partition i is taken to read partition i, and
     * parents with another number of partitions are left out.
     */
    void addByDescription(StageInfo stage) throws ReflectiveOperationException {
        Map<Integer, RDDInfo> own = describe(stage);
        Set<Integer> found = new TreeSet<>();
        Deque<Integer> work = new ArrayDeque<>(own.isEmpty() ? List.of() : List.of(Collections.max(own.keySet())));
        while (!work.isEmpty()) {
            RDDInfo info = own.get(work.poll());
            if (info.storageLevel().useMemory()) {
                found.add(info.id());
                persisted.put(info.id(), new Persisted(info.numPartitions(), info.storageLevel().useDisk()));
                continue;
            }
            for (Object parent : Scala.items(info, "parentIds")) {
                RDDInfo known = own.get((Integer) parent);
                if (known != null && known.numPartitions() == info.numPartitions()) {
                    work.add(known.id());
                }
            }
        }
        for (int partition = 0; partition < stage.numTasks(); partition++) {
            int place = partition;
            long[] blocks = found.stream().mapToLong(rdd -> Keys.block(rdd, place)).toArray();
            tasks.add(new Task(stage.stageId(), partition, blocks));
        }
    }

    /** Follow the blocks of all tasks to the blocks they are computed from. */
    void walkLineage() throws ReflectiveOperationException {
        Deque<Long> work = new ArrayDeque<>();
        tasks.forEach(task -> Arrays.stream(task.blocks).forEach(work::add));
        while (!work.isEmpty()) {
            long block = work.poll();
            if (lineage.containsKey(block) || isKnown.test(block)) {
                continue;
            }
            RDD<?> rdd = rdds.get(Keys.rdd(block));
            long[] parents = rdd == null ? new long[0] : nearestOfParents(rdd, Keys.partition(block));
            lineage.put(block, parents);
            Arrays.stream(parents).forEach(work::add);
        }
    }

    private static int[] partitions(Stage stage) {
        if (stage instanceof ResultStage) {
            return ((ResultStage) stage).partitions();
        }
        int[] all = new int[stage.numPartitions()];
        Arrays.setAll(all, partition -> partition);
        return all;
    }

    private long[] nearest(RDD<?> rdd, int partition) throws ReflectiveOperationException {
        if (!leadsToPersisted(rdd)) {
            return new long[0];
        }
        if (rdd.getStorageLevel().useMemory()) {
            rdds.put(rdd.id(), rdd);
            persisted.put(rdd.id(), new Persisted(rdd.getNumPartitions(), rdd.getStorageLevel().useDisk()));
            return new long[] {Keys.block(rdd.id(), partition)};
        }
        long place = Keys.block(rdd.id(), partition);
        long[] found = nearest.get(place);
        if (found == null) {
            found = nearestOfParents(rdd, partition);
            nearest.put(place, found);
        }
        return found;
    }

    private long[] nearestOfParents(RDD<?> rdd, int partition) throws ReflectiveOperationException {
        Set<Long> found = new HashSet<>();
        for (Dependency<?> dependency : narrow(rdd)) {
            for (int parent : parents(dependency, partition)) {
                for (long block : nearest(dependency.rdd(), parent)) {
                    found.add(block);
                }
            }
        }
        return found.stream().mapToLong(Long::longValue).sorted().toArray();
    }

    private static int[] parents(Dependency<?> dependency, int partition) throws ReflectiveOperationException {
        if (dependency instanceof OneToOneDependency) {
            return new int[] {partition};
        }
        return Scala.items(dependency, "getParents", partition).stream().mapToInt(item -> (Integer) item).toArray();
    }

    private List<Dependency<?>> narrow(RDD<?> rdd) throws ReflectiveOperationException {
        List<Dependency<?>> found = narrow.get(rdd.id());
        if (found == null) {
            found = new ArrayList<>();
            for (Object dependency : Scala.items(rdd, "dependencies")) {
                if (dependency instanceof NarrowDependency) {
                    found.add((Dependency<?>) dependency);
                }
            }
            narrow.put(rdd.id(), found);
        }
        return found;
    }

    /** Whether this RDD or one that it reads without a shuffle is persisted; most walks end here. */
    private boolean leadsToPersisted(RDD<?> rdd) throws ReflectiveOperationException {
        Boolean known = leadsToPersisted.get(rdd.id());
        if (known == null) {
            known = rdd.getStorageLevel().useMemory();
            for (Dependency<?> dependency : known ? List.<Dependency<?>>of() : narrow(rdd)) {
                known = known || leadsToPersisted(dependency.rdd());
            }
            leadsToPersisted.put(rdd.id(), known);
        }
        return known;
    }
}
