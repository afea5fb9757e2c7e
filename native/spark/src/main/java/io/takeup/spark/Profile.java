package io.takeup.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What an application read in an earlier run: its jobs in order, each with the blocks its tasks read together. */
final class Profile {
    static final int FORMAT = 1;

    /** One task: its stage and position in that run, and its blocks as (RDD of the profile, partition). */
    static final class Task {
        final int stage;
        final double position;
        final long[] blocks;

        Task(int stage, double position, long[] blocks) {
            this.stage = stage;
            this.position = position;
            this.blocks = blocks;
        }
    }

    /** One job: the signature of what it computes, where it began, and its tasks. */
    static final class Job {
        final String signature;
        final double position;
        final List<Task> tasks = new ArrayList<>();

        Job(String signature, double position) {
            this.signature = signature;
            this.position = position;
        }
    }

    final List<Job> jobs = new ArrayList<>();
    private final Map<String, Integer> rdds = new HashMap<>();

    /** The number of the RDD with this signature, a new one if it is unknown. */
    int rdd(String signature) {
        return rdds.computeIfAbsent(signature, unseen -> rdds.size());
    }

    boolean knows(String signature) {
        return rdds.containsKey(signature);
    }

    static Profile read(Path path) throws IOException {
        JsonNode root = new ObjectMapper().readTree(path.toFile());
        if (root == null || root.path("format").asInt() != FORMAT) {
            throw new IOException(path + " is no profile of format " + FORMAT);
        }
        Profile profile = new Profile();
        for (JsonNode signature : root.withArray("rdds")) {
            profile.rdd(signature.asText());
        }
        for (JsonNode job : root.withArray("jobs")) {
            Job read = new Job(job.get("signature").asText(), job.get("position").asDouble());
            for (JsonNode task : job.withArray("tasks")) {
                read.tasks.add(task(task));
            }
            profile.jobs.add(read);
        }
        return profile;
    }

    private static Task task(JsonNode fields) {
        long[] blocks = new long[(fields.size() - 2) / 2];
        for (int index = 0; index < blocks.length; index++) {
            blocks[index] = Keys.block(fields.get(2 + 2 * index).asInt(), fields.get(3 + 2 * index).asInt());
        }
        return new Task(fields.get(0).asInt(), fields.get(1).asDouble(), blocks);
    }

    void write(Path path) throws IOException {
        new ObjectMapper().writeValue(path.toFile(), toJson());
    }

    private ObjectNode toJson() {
        ObjectNode root = new ObjectMapper().createObjectNode();
        root.put("format", FORMAT);
        String[] names = new String[rdds.size()];
        rdds.forEach((name, number) -> names[number] = name);
        ArrayNode signatures = root.putArray("rdds");
        for (String name : names) {
            signatures.add(name);
        }
        ArrayNode list = root.putArray("jobs");
        for (Job job : jobs) {
            ObjectNode entry = list.addObject();
            entry.put("signature", job.signature);
            entry.put("position", job.position);
            ArrayNode tasks = entry.putArray("tasks");
            for (Task task : job.tasks) {
                ArrayNode fields = tasks.addArray().add(task.stage).add(task.position);
                for (long block : task.blocks) {
                    fields.add(Keys.rdd(block)).add(Keys.partition(block));
                }
            }
        }
        return root;
    }
}
