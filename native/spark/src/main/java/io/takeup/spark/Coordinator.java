package io.takeup.spark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.rpc.RpcEndpointRef;

/**
 * What the driver knows of all blocks and readers, and whom it tells.
 *
 * <p>Executors learn of a job when it starts, of each other's losses only when a complete group breaks by it, and of
 * each other's tasks in batches. All of it is a hint: what comes late costs a hit, never a result.
 */
final class Coordinator {
    private static final long DEFAULT_BLOCK_BYTES = 1 << 20;

    private final Policy policy;
    private final boolean hasProfile; // only then is what jobs read kept for the next run
    private final GroupTable table = new GroupTable(block -> {});
    private final Lineage lineage = new Lineage(table);
    private final Executors executors;
    private final Expectations expectations = new Expectations();
    private final Signatures signatures = new Signatures();
    private final Map<Integer, Boolean> keepsOnDisk = new HashMap<>();
    private final Map<Integer, Double> bytesOfRdd = new HashMap<>();
    private final Map<Integer, Set<Long>> blocksOfRdd = new HashMap<>();
    private final Map<Long, Set<String>> homes = new HashMap<>();
    private final Map<Integer, long[]> tasksOfJob = new HashMap<>();
    private final Set<Long> cachedSince = new HashSet<>();
    private final Set<Long> lostSince = new HashSet<>();
    private double position;
    private int stage;
    final HitCounts hits = new HitCounts();
    final Future future;
    long numBroadcasts;
    long numRecompletions;
    long numEvictionsSeen;

    Coordinator(Policy policy, Profile past, boolean hasProfile) {
        this.policy = policy;
        this.hasProfile = hasProfile;
        this.executors = new Executors(!policy.isStock());
        this.future = new Future(past);
    }

    // Executors ----------------------------------------------------------------------------------------------------

    /** An executor says hello and hears everything that is known. */
    synchronized Object[] hello(String executor, RpcEndpointRef reference) {
        executors.add(executor, reference);
        List<GroupTable.Group> open = new ArrayList<>();
        for (GroupTable.Group group : table.groups()) {
            if (!Keys.isBlock(group.consumer)) {
                open.add(group);
            }
        }
        List<Long> lost = new ArrayList<>();
        for (Set<Long> blocks : blocksOfRdd.values()) {
            blocks.stream().filter(table::isLost).forEach(lost::add);
        }
        return new Object[] {
            lineageMessage(lineage.known()),
            Messages.state(Executors.toArray(homes.keySet()), Executors.toArray(lost), onDisk(lost, homes.keySet())),
            Messages.open(open)
        };
    }

    synchronized void executorRemoved(String executor) {
        executors.remove(executor);
        List<Long> lost = new ArrayList<>();
        for (Long block : new ArrayList<>(homes.keySet())) {
            if (homes.get(block).remove(executor) && homes.get(block).isEmpty()) {
                homes.remove(block);
                lineage.lost(block);
                lost.add(block);
            }
        }
        executors.send(Messages.state(new long[0], Executors.toArray(lost), new long[0]), null);
    }

    synchronized void sendClosed() {
        executors.sendClosed();
    }

    synchronized Map<String, RpcEndpointRef> executorReferences() {
        return executors.all();
    }

    synchronized long numMessages() {
        return executors.numMessages;
    }

    synchronized int numGroups() {
        return table.numGroups();
    }

    // Blocks -------------------------------------------------------------------------------------------------------

    synchronized void blockUpdated(String executor, long block, long memoryBytes) {
        if (memoryBytes > 0) {
            bytesOfRdd.merge(Keys.rdd(block), (double) memoryBytes, (old, now) -> 0.8 * old + 0.2 * now);
            blocksOfRdd.computeIfAbsent(Keys.rdd(block), unseen -> new HashSet<>()).add(block);
            if (homes.computeIfAbsent(block, unseen -> new HashSet<>()).add(executor)) {
                cached(executor, block);
            }
        } else if (homes.containsKey(block) && homes.get(block).remove(executor)) {
            numEvictionsSeen++;
            if (homes.get(block).isEmpty()) {
                homes.remove(block);
                lost(executor, block);
            }
        }
    }

    private void cached(String executor, long block) {
        int numComplete = lineage.cached(block, keepsOnDisk.getOrDefault(Keys.rdd(block), false));
        cachedSince.add(block);
        lostSince.remove(block);
        if (numComplete > 0 && policy.countsEffectively()) {
            numRecompletions++;
            executors.send(Messages.state(new long[] {block}, new long[0], new long[0]), executor);
        }
    }

    /** The executor that dropped it knows; the others hear of it at once only if that changes what they should keep. */
    private void lost(String executor, long block) {
        int numBroken = lineage.lost(block);
        cachedSince.remove(block);
        lostSince.add(block);
        if (numBroken > 0 && policy.countsEffectively()) {
            numBroadcasts++;
            executors.send(Messages.state(new long[0], new long[] {block}, new long[0]), executor);
        }
    }

    synchronized void unpersisted(int rdd) {
        long[] blocks = Executors.toArray(blocksOfRdd.getOrDefault(rdd, Set.of()));
        blocksOfRdd.remove(rdd);
        bytesOfRdd.remove(rdd);
        keepsOnDisk.remove(rdd);
        signatures.forget(rdd);
        expectations.forget(rdd);
        hits.forget(blocks);
        for (long block : blocks) {
            lineage.forget(block);
            homes.remove(block);
            cachedSince.remove(block);
            lostSince.remove(block);
        }
        executors.send(Messages.forget(blocks), null);
    }

    // Jobs ---------------------------------------------------------------------------------------------------------

    /** Blocks whose inputs need not be looked up again. */
    synchronized boolean knowsLineage(long block) {
        return lineage.parents(block) != null;
    }

    /** A job begins. Everybody hears what has changed since the last one, and who will read what. */
    synchronized void jobStarted(int job, JobGraph graph) throws ReflectiveOperationException {
        executors.hold();
        try {
            begin(job, graph);
        } finally {
            executors.release();
        }
    }

    private void begin(int job, JobGraph graph) throws ReflectiveOperationException {
        String signature = meet(graph);
        double[] start = {position};
        List<Long> over = future.begin(signature, start);
        position = start[0];
        List<GroupTable.Group> groups = place(graph.tasks);
        sendChanges(graph.lineage);
        if (hasProfile) {
            future.record(signature, start[0], graph.tasks, groups, new Naming());
        }
        close(over);
        open(groups);
        if (hasProfile) {
            open(future.bind(bindings(graph)));
        }
        remember(job, groups);
        expect(graph, groups, start[0]);
    }

    synchronized void taskEnded(int stageId, int partition, String executor) {
        long task = Keys.task(stageId, partition);
        GroupTable.Group group = table.group(task);
        if (group == null) {
            return;
        }
        Set<String> concerned = new HashSet<>();
        for (long block : group.blocks) {
            concerned.addAll(homes.getOrDefault(block, Set.of()));
        }
        concerned.remove(executor); // it has closed the task itself
        concerned.forEach(other -> executors.closeLater(other, task));
        lineage.close(task);
    }

    synchronized void jobEnded(int job) {
        long[] tasks = tasksOfJob.remove(job);
        if (tasks != null) {
            Arrays.stream(tasks).forEach(lineage::close);
            executors.closeLater(tasks);
        }
    }

    /** New RDDs get their signatures; the job gets one from the RDD it ends with. */
    private String meet(JobGraph graph) throws ReflectiveOperationException {
        graph.persisted.forEach((rdd, facts) -> keepsOnDisk.put(rdd, facts.keepsOnDisk));
        if (!hasProfile) {
            signatures.meetKinds(graph.infos, graph.persisted.keySet());
            return "";
        }
        signatures.meet(graph.infos);
        return signatures.ofJob(graph.last);
    }

    private Map<String, Integer> bindings(JobGraph graph) {
        Map<String, Integer> bindings = new HashMap<>();
        graph.persisted.keySet().forEach(rdd -> bindings.put(signatures.of(rdd), rdd));
        return bindings;
    }

    /** Where in the order of everything each task stands: after so many bytes on each executor. */
    private List<GroupTable.Group> place(List<JobGraph.Task> tasks) {
        List<GroupTable.Group> groups = new ArrayList<>();
        int current = -1;
        for (JobGraph.Task task : tasks) {
            stage += task.stage == current ? 0 : 1;
            current = task.stage;
            long consumer = Keys.task(task.stage, task.partition);
            groups.add(new GroupTable.Group(consumer, task.blocks, position, stage));
            for (long block : task.blocks) {
                position += bytesOfRdd.getOrDefault(Keys.rdd(block), (double) DEFAULT_BLOCK_BYTES) / executors.size();
            }
        }
        return groups;
    }

    private void sendChanges(Map<Long, long[]> newLineage) {
        newLineage.forEach((block, parents) -> {
            lineage.computedFrom(block, parents);
            blocksOfRdd.computeIfAbsent(Keys.rdd(block), unseen -> new HashSet<>()).add(block);
        });
        if (!newLineage.isEmpty()) {
            executors.send(lineageMessage(newLineage), null);
        }
        if (!cachedSince.isEmpty() || !lostSince.isEmpty()) {
            long[] onDisk = onDisk(cachedSince, lostSince);
            executors.send(Messages.state(Executors.toArray(cachedSince), Executors.toArray(lostSince), onDisk), null);
        }
        cachedSince.clear();
        lostSince.clear();
    }

    private void open(List<GroupTable.Group> groups) {
        List<GroupTable.Group> readers = new ArrayList<>();
        for (GroupTable.Group group : groups) {
            if (group.blocks.length > 0) {
                lineage.open(group.consumer, group.blocks, group.position, group.stage);
                readers.add(group);
            }
        }
        if (!readers.isEmpty()) {
            executors.send(Messages.open(readers), null);
        }
    }

    private void close(List<Long> consumers) {
        consumers.forEach(lineage::close);
        if (!consumers.isEmpty()) {
            executors.send(Messages.close(Executors.toArray(consumers)), null);
        }
    }

    private void remember(int job, List<GroupTable.Group> groups) {
        long[] tasks = groups.stream().mapToLong(group -> group.consumer).toArray();
        tasksOfJob.put(job, tasks);
        hits.expect(tasks, groups.stream().map(group -> group.blocks).toArray(long[][]::new));
    }

    /** Without a profile to trust, the next readers are guessed from the jobs so far. */
    private void expect(JobGraph graph, List<GroupTable.Group> groups, double start) {
        double jobBytes = position - start;
        Set<Long> madeNow = new HashSet<>();
        Map<Integer, Expectations.Reading> readings = new HashMap<>();
        for (GroupTable.Group group : groups) {
            double where = (group.position - start) / Math.max(1, jobBytes);
            for (long block : new Naming().reads(group.blocks, madeNow)) {
                Expectations.Reading begun = readings.get(Keys.rdd(block));
                Expectations.Reading first = new Expectations.Reading(where, where, group.stage);
                readings.put(Keys.rdd(block), begun == null ? first : begun.and(where, group.stage));
            }
        }
        Set<Integer> touched = new HashSet<>(readings.keySet());
        madeNow.forEach(block -> touched.add(Keys.rdd(block)));
        graph.persisted.forEach((rdd, facts) -> {
            if (touched.contains(rdd)) {
                expectations.seen(rdd, signatures.kind(rdd), facts.numPartitions, readings.get(rdd));
            }
        });
        announce(jobBytes);
    }

    private void announce(double jobBytes) {
        List<Object[]> messages = expectations.announce(position, jobBytes, stage);
        if (policy.isStock() || future.isTrusted()) {
            expectations.nothingWasSaid();
            return;
        }
        for (Object[] message : messages) {
            Messages.forEachExpected(message, 0, Messages.count(message), (block, where, when) -> {
                if (Double.isInfinite(where)) {
                    lineage.close(Keys.expected(block));
                } else {
                    lineage.open(Keys.expected(block), new long[] {block}, where, when);
                }
            });
            executors.send(message, null);
        }
    }

    private static Object[] lineageMessage(Map<Long, long[]> lineage) {
        long[] blocks = lineage.keySet().stream().mapToLong(Long::longValue).sorted().toArray(); // in order it is small
        return Messages.lineage(blocks, Arrays.stream(blocks).mapToObj(lineage::get).toArray(long[][]::new));
    }

    private long[] onDisk(Iterable<Long> some, Iterable<Long> others) {
        List<Long> blocks = new ArrayList<>();
        some.forEach(blocks::add);
        others.forEach(blocks::add);
        blocks.removeIf(block -> !lineage.isOnDisk(block));
        return Executors.toArray(blocks);
    }

    /** Blocks for the profile of this run. */
    private final class Naming implements Future.Naming {
        @Override
        public Set<Long> reads(long[] blocks, Set<Long> madeNow) {
            Set<Long> reads = new HashSet<>();
            Set<Long> makes = new HashSet<>();
            Deque<Long> work = new ArrayDeque<>();
            Arrays.stream(blocks).forEach(work::add);
            while (!work.isEmpty()) {
                long block = work.poll();
                if (table.isMade(block) || madeNow.contains(block)) {
                    reads.add(block);
                } else if (makes.add(block) && lineage.parents(block) != null) {
                    Arrays.stream(lineage.parents(block)).forEach(work::add);
                }
            }
            madeNow.addAll(makes);
            return reads;
        }

        @Override
        public String signature(int rdd) {
            return signatures.of(rdd);
        }
    }
}
