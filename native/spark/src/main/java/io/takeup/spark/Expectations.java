package io.takeup.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * When an RDD will probably be read next, from the jobs so far: Spark announces no job before the one that runs, and a
 * block without a known reader is not dead for that.
 *
 * <p>In a loop every round makes RDDs of the same kinds, and what happened to those of the rounds before will happen to
 * the next. Where there is no such precedent: an RDD that was never read is expected in the next job; one that was read
 * is expected again after as many jobs as last time, until twice that has passed. The first time counts from the job
 * that made it, and there is no second time if another RDD of the same kind has been made since.
 */
final class Expectations {
    private static final int PATIENCE_JOBS = 3;
    private static final int NUM_PRECEDENTS = 4;
    private static final double SAME_JOBS = 0.05; // an expectation that has moved by less is not repeated
    private static final double SAME_SHARE = 0.125; // nor one that has moved by less than this share of its gap

    private static final int MOST_READINGS = 1024; // of one RDD; what is read in more jobs keeps the latest

    /** A job's reading of an RDD: from where to where in the job, as shares of it. */
    static final class Reading {
        final double from;
        final double to;
        final int stage;

        Reading(double from, double to, int stage) {
            this.from = from;
            this.to = to;
            this.stage = stage;
        }

        /** Also here, if that is the same stage: what counts is when the first reader comes to each block. */
        Reading and(double where, int otherStage) {
            return otherStage == stage ? new Reading(Math.min(from, where), Math.max(to, where), stage) : this;
        }
    }

    private static final Reading SOMEWHERE = new Reading(0, 1, -1);

    /** The life of one RDD; jobs are counted from the one that made it. */
    private static final class History {
        final int numPartitions;
        final int firstJob;
        final TreeMap<Integer, Reading> readings = new TreeMap<>();
        final List<History> precedents; // youngest first
        int lastJob;
        int gap = 1;
        boolean isExpected;
        double start; // as last announced, if it is expected
        boolean isOver;
        boolean hasSuccessor; // an RDD of the same kind was made later

        History(int numPartitions, int firstJob, List<History> precedents) {
            this.numPartitions = numPartitions;
            this.firstJob = firstJob;
            this.lastJob = firstJob;
            this.precedents = precedents;
        }
    }

    private final Map<Integer, History> rdds = new HashMap<>();
    private final Map<String, List<History>> ofKind = new HashMap<>();
    private final Map<String, Integer> numMade = new HashMap<>(); // by this job
    private double averageJobBytes;
    private int job;

    /** A job begins that makes this RDD, reads it, or both; {@code reading} is null if it does not read it. */
    void seen(int rdd, String kind, int numPartitions, Reading reading) {
        History history = rdds.computeIfAbsent(rdd, unseen -> make(kind, numPartitions));
        if (reading == null) {
            return;
        }
        int age = job - history.firstJob;
        if (knows(history, age) && precedent(history, age) == null) {
            history.precedents.clear(); // it goes its own way
        }
        history.gap = Math.max(1, job - history.lastJob);
        history.lastJob = job;
        history.readings.put(age, reading);
        if (history.readings.size() > MOST_READINGS) {
            history.readings.pollFirstEntry();
        }
    }

    private History make(String kind, int numPartitions) {
        String name = kind + "#" + numMade.merge(kind, 1, Integer::sum);
        List<History> earlier = ofKind.computeIfAbsent(name, unseen -> new ArrayList<>());
        History history = new History(numPartitions, job, new ArrayList<>(earlier));
        earlier.stream().limit(1).forEach(last -> last.hasSuccessor = true);
        earlier.add(0, history);
        if (earlier.size() > NUM_PRECEDENTS) {
            earlier.remove(NUM_PRECEDENTS).precedents.clear(); // or the chain would never end
        }
        return history;
    }

    /** After all calls of {@link #seen} for a job of so many bytes that ends at {@code position}: what to announce. */
    List<Object[]> announce(double position, double jobBytes, int stage) {
        averageJobBytes = averageJobBytes == 0 ? jobBytes : 0.7 * averageJobBytes + 0.3 * jobBytes;
        List<Object[]> messages = new ArrayList<>();
        rdds.forEach((rdd, history) -> {
            int numJobs = jobsUntilNext(history);
            if (numJobs >= 0) {
                Reading reading = precedent(history, job - history.firstJob + 1 + numJobs);
                Reading where = reading == null ? SOMEWHERE : reading;
                double start = position + (numJobs + where.from) * averageJobBytes;
                double step = (where.to - where.from) * averageJobBytes / Math.max(1, history.numPartitions);
                double same = Math.max(SAME_JOBS, SAME_SHARE * (history.gap - 1)) * averageJobBytes;
                if (!history.isExpected || Math.abs(start - history.start) > same) {
                    history.start = start;
                    messages.add(Messages.expect(rdd, history.numPartitions, start, step, stage + 1 + numJobs));
                }
            } else if (history.isExpected) {
                messages.add(Messages.expect(rdd, history.numPartitions, Double.POSITIVE_INFINITY, 0, stage));
            }
            history.isExpected = numJobs >= 0;
        });
        job++;
        numMade.clear();
        return messages;
    }

    /** What was to be announced did not leave: next time all of it is new. */
    void nothingWasSaid() {
        rdds.values().forEach(history -> history.isExpected = false);
    }

    void forget(int rdd) {
        History history = rdds.remove(rdd);
        if (history != null) {
            history.isOver = true;
        }
    }

    /** How many jobs lie between this one and the next reader; -1 if none is expected. */
    private int jobsUntilNext(History history) {
        int age = job - history.firstJob;
        int numKnown = 0;
        while (numKnown < NUM_PRECEDENTS && knows(history, age + 1 + numKnown)) {
            if (precedent(history, age + 1 + numKnown) != null) {
                return numKnown;
            }
            numKnown++;
        }
        int guess = guessed(history);
        return numKnown == NUM_PRECEDENTS || guess < 0 ? -1 : Math.max(numKnown, guess);
    }

    /** Whether an RDD of the same kind was that old, or did not live to be. */
    private boolean knows(History history, int age) {
        return history.precedents.stream().anyMatch(old -> old.isOver || job - old.firstJob >= age);
    }

    /** How the youngest RDD of the same kind that was that old was read at that age; null if it was not. */
    private Reading precedent(History history, int age) {
        for (History old : history.precedents) {
            if (old.isOver || job - old.firstJob >= age) {
                return old.readings.get(age);
            }
        }
        return null;
    }

    /** Read once, and the loop has gone on: with the next one of its kind, or as it did after the one before. */
    private static boolean isUsedUp(History history) {
        boolean wasSoBefore = !history.precedents.isEmpty() && history.precedents.get(0).readings.size() == 1;
        return history.readings.size() == 1 && (history.hasSuccessor || wasSoBefore);
    }

    /** Without a precedent. */
    private int guessed(History history) {
        if (history.readings.isEmpty()) {
            return job - history.firstJob <= PATIENCE_JOBS ? 0 : -1;
        }
        int numIdle = job - history.lastJob;
        if (numIdle > 2 * history.gap || isUsedUp(history)) {
            return -1;
        }
        return Math.max(0, history.gap - numIdle - 1);
    }
}
