package io.takeup.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The jobs that a profile foretells, and the profile of this run for the next one.
 *
 * <p>An RDD of the profile is *bound* once this run has an RDD of the same signature; the readers of its blocks in
 * later jobs are known from then on. A job that the profile does not have is passed over; jobs of the profile that do
 * not come are given up when a later one does.
 */
final class Future {
    private final Profile past;
    final Profile recorded = new Profile();
    private final Map<String, Integer> bound = new HashMap<>();
    private final Map<Integer, List<int[]>> tasksOfRdd = new HashMap<>();
    private int nextJob;
    int numMatched;
    int numUnmatched;

    Future(Profile past) {
        this.past = past;
        for (int job = 0; job < past.jobs.size(); job++) {
            List<Profile.Task> tasks = past.jobs.get(job).tasks;
            for (int task = 0; task < tasks.size(); task++) {
                for (long block : tasks.get(task).blocks) {
                    tasksOfRdd.computeIfAbsent(Keys.rdd(block), unseen -> new ArrayList<>()).add(new int[] {job, task});
                }
            }
        }
    }

    /** Whether the run has gone as the profile says so far, so that it is better than a guess. */
    boolean isTrusted() {
        return nextJob < past.jobs.size() && numMatched >= numUnmatched;
    }

    boolean isStale() {
        return numUnmatched > 0 || past.jobs.isEmpty();
    }

    /** The job has begun: the consumers foretold for it and for jobs before it, to be closed. Also its position. */
    List<Long> begin(String signature, double[] position) {
        for (int job = nextJob; job < past.jobs.size(); job++) {
            if (past.jobs.get(job).signature.equals(signature)) {
                position[0] = Math.max(position[0], past.jobs.get(job).position);
                List<Long> over = consumers(nextJob, job + 1);
                nextJob = job + 1;
                numMatched++;
                return over;
            }
        }
        numUnmatched++;
        return List.of();
    }

    /** These RDDs exist now: the consumers of later jobs that read them, with all their blocks that can exist. */
    List<GroupTable.Group> bind(Map<String, Integer> rdds) {
        Set<Long> affected = new HashSet<>();
        List<GroupTable.Group> groups = new ArrayList<>();
        rdds.forEach((signature, rdd) -> {
            if (past.knows(signature) && !rdd.equals(bound.put(signature, rdd))) {
                affected.addAll(laterReaders(past.rdd(signature)));
            }
        });
        if (!affected.isEmpty()) {
            Map<Integer, Integer> ids = new HashMap<>();
            bound.forEach((signature, rdd) -> ids.put(past.rdd(signature), rdd));
            affected.forEach(place -> groups.add(group((int) (place >> 32), (int) (long) place, ids)));
        }
        return groups;
    }

    /** Note for the next run what the tasks of a job read; what an earlier task of the job makes exists by then. */
    void record(
            String signature, double position, List<JobGraph.Task> tasks, List<GroupTable.Group> groups, Naming names) {
        Profile.Job job = new Profile.Job(signature, position);
        Set<Long> madeNow = new HashSet<>();
        for (int index = 0; index < tasks.size(); index++) {
            Set<Long> reads = new HashSet<>();
            for (long block : names.reads(tasks.get(index).blocks, madeNow)) {
                String rdd = names.signature(Keys.rdd(block));
                if (rdd != null) {
                    reads.add(Keys.block(recorded.rdd(rdd), Keys.partition(block)));
                }
            }
            GroupTable.Group group = groups.get(index);
            if (!reads.isEmpty()) {
                job.tasks.add(new Profile.Task(group.stage, group.position, Executors.toArray(reads)));
            }
        }
        recorded.jobs.add(job);
    }

    /** What the recording needs to know of blocks. */
    interface Naming {
        /** The blocks that exist and that a task in need of these will read; those it makes are added to the set. */
        Set<Long> reads(long[] blocks, Set<Long> madeNow);

        String signature(int rdd);
    }

    private List<Long> laterReaders(int rdd) {
        List<Long> places = new ArrayList<>();
        for (int[] place : tasksOfRdd.getOrDefault(rdd, List.of())) {
            if (place[0] >= nextJob) {
                places.add(Keys.block(place[0], place[1]));
            }
        }
        return places;
    }

    private GroupTable.Group group(int job, int index, Map<Integer, Integer> ids) {
        Profile.Task task = past.jobs.get(job).tasks.get(index);
        List<Long> blocks = new ArrayList<>();
        for (long block : task.blocks) {
            Integer rdd = ids.get(Keys.rdd(block));
            if (rdd != null) {
                blocks.add(Keys.block(rdd, Keys.partition(block)));
            }
        }
        return new GroupTable.Group(
                Keys.future(Keys.block(job, index)), Executors.toArray(blocks), task.position, task.stage);
    }

    private List<Long> consumers(int fromJob, int toJob) {
        List<Long> consumers = new ArrayList<>();
        for (int job = fromJob; job < toJob; job++) {
            for (int index = 0; index < past.jobs.get(job).tasks.size(); index++) {
                consumers.add(Keys.future(Keys.block(job, index)));
            }
        }
        return consumers;
    }
}
