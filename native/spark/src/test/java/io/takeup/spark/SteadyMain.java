package io.takeup.spark;

import java.util.ArrayList;
import java.util.List;

/**
 * What stays small: prints the bytes by which the driver's heap grows over many jobs without a profile, the bytes of the
 * message that opens many tasks of two blocks each, and the longest that a choice waited for an executor that hears it, in us.
 */
public final class SteadyMain {
    private static final int NUM_TASKS = 32;
    private static final int NUM_READERS = 200_000;

    private SteadyMain() {}

    public static void main(String[] arguments) throws Exception {
        int numJobs = Integer.parseInt(arguments[0]);
        Coordinator coordinator = new Coordinator(Policy.parse("dag"), new Profile(), false);
        runJobs(coordinator, 0, 200);
        long before = heapBytes();
        runJobs(coordinator, 200, numJobs);
        System.out.println(heapBytes() - before);
        Object[] message = Messages.packed(Messages.open(readers()));
        System.out.println(((byte[]) message[1]).length);
        System.out.println(longestWaitUs(Wire.unpacked((byte[]) message[1])));
        coordinator.numGroups(); // still reachable
    }

    /** Jobs over the same table, each with one that it persists, reads in the next job and unpersists. */
    private static void runJobs(Coordinator coordinator, int from, int to) throws Exception {
        for (int job = from; job < to; job++) {
            JobGraph graph = new JobGraph(block -> false);
            for (int task = 0; task < NUM_TASKS; task++) {
                long[] blocks = {Keys.block(1, task), Keys.block(job + 2, task), Keys.block(job + 1, task)};
                graph.tasks.add(new JobGraph.Task(job, task, blocks));
            }
            for (int rdd : new int[] {1, job + 1, job + 2}) {
                graph.persisted.put(rdd, new JobGraph.Persisted(NUM_TASKS, false));
            }
            coordinator.jobStarted(job, graph);
            for (int task = 0; task < NUM_TASKS; task++) {
                coordinator.blockUpdated("0", Keys.block(1, task), 1000);
                coordinator.blockUpdated("0", Keys.block(job + 2, task), 1000);
                coordinator.hits.add(new long[] {Keys.task(job, task), 1, Keys.block(1, task), Keys.block(job + 2, task)});
                coordinator.taskEnded(job, task, "0");
            }
            coordinator.jobEnded(job);
            coordinator.sendClosed();
            if (job > 0) {
                coordinator.unpersisted(job + 1);
            }
        }
    }

    private static long heapBytes() throws InterruptedException {
        for (int time = 0; time < 3; time++) {
            System.gc();
            Thread.sleep(20);
        }
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }

    private static List<GroupTable.Group> readers() {
        List<GroupTable.Group> groups = new ArrayList<>();
        for (int task = 0; task < NUM_READERS; task++) {
            long[] blocks = {Keys.block(5, task), Keys.block(9, task)};
            groups.add(new GroupTable.Group(Keys.task(3, task), blocks, 1e9 + task * 1_234_567.25, 7));
        }
        return groups;
    }

    private static long longestWaitUs(Object[] message) throws InterruptedException {
        BlockRanks ranks = new BlockRanks("dag", true, 1L << 30);
        Thread hearing = new Thread(() -> ranks.apply(message));
        hearing.start();
        long longestNs = 0;
        while (hearing.isAlive()) {
            long beganNs = System.nanoTime();
            ranks.inactiveBytes();
            longestNs = Math.max(longestNs, System.nanoTime() - beganNs);
            Thread.sleep(1);
        }
        return longestNs / 1000;
    }
}
