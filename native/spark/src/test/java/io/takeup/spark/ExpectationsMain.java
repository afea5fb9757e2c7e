package io.takeup.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;

/**
 * Expectations on standard input. A line with {@code job} has the RDDs the job makes or reads, as lists of number, kind
 * and, where it is read, from where to where; all jobs have 100 bytes. The answer names what is expected then: per RDD
 * the distance to the first and to the second of its two blocks. A line with {@code forget} has no answer; one with {@code said} asks how
 * many were announced by the last job. After a job with {@code trusted} nothing is sent.
 */
public final class ExpectationsMain {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final double JOB_BYTES = 100;

    private ExpectationsMain() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        Expectations expectations = new Expectations();
        ObjectNode expected = JSON.createObjectNode();
        int numSaid = 0;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode order = JSON.readTree(line);
            if (order.has("forget")) {
                expectations.forget(order.get("forget").asInt());
                expected.remove(order.get("forget").asText());
                continue;
            }
            if (order.has("said")) {
                System.out.println("{\"said\": " + numSaid + "}");
                continue;
            }
            order.get("job").forEach(rdd -> expectations.seen(
                    rdd.get(0).asInt(), rdd.get(1).asText(), 2, reading(rdd.path(2))));
            numSaid = 0;
            for (Object[] message : expectations.announce(0, JOB_BYTES, 0)) {
                note(message, expected);
                numSaid++;
            }
            if (order.path("trusted").asBoolean()) {
                expectations.nothingWasSaid();
            }
            System.out.println(expected);
        }
    }

    private static Expectations.Reading reading(JsonNode where) {
        return where.isArray()
                ? new Expectations.Reading(where.get(0).asDouble(), where.get(1).asDouble(), 0)
                : null;
    }

    private static void note(Object[] message, ObjectNode expected) {
        String rdd = String.valueOf(((int[]) message[1])[0]);
        expected.remove(rdd);
        Messages.forEachExpected(message, 0, Messages.count(message), (block, position, stage) -> {
            if (!Double.isInfinite(position)) {
                expected.withArray(rdd).add(position);
            }
        });
    }
}
