package io.takeup.spark;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Pattern;
import org.apache.spark.storage.RDDInfo;

/**
 * Names for RDDs that are the same in every run of an application: a hash of operator, call site, number of partitions
 * and parents, and which RDD with this hash it is. An event log has all of that, so a profile can come from one too.
 */
final class Signatures {
    private static final Pattern NUMBER = Pattern.compile("[0-9]+");

    private final Map<Integer, String> known = new HashMap<>();
    private final Map<Integer, String> kinds = new HashMap<>();
    private final Map<String, Integer> occurrences = new HashMap<>();

    /** Sign the RDDs of a job in the order of their numbers: parents have smaller ones. */
    void meet(Map<Integer, RDDInfo> rdds) throws ReflectiveOperationException {
        for (RDDInfo info : new TreeMap<>(rdds).values()) {
            if (!known.containsKey(info.id())) {
                known.put(info.id(), sign(info));
                kinds.put(info.id(), kind(info));
            }
        }
    }

    /** Without a profile only the kinds of persisted RDDs are needed, and only as long as they are persisted. */
    void meetKinds(Map<Integer, RDDInfo> rdds, Iterable<Integer> persisted) {
        for (int rdd : persisted) {
            if (rdds.containsKey(rdd)) {
                kinds.putIfAbsent(rdd, kind(rdds.get(rdd)));
            }
        }
    }

    /** The RDD is no longer persisted. Its signature stays: it is a part of those of its children. */
    void forget(int rdd) {
        kinds.remove(rdd);
    }

    /** Null for an RDD that was in no job. */
    String of(int rdd) {
        return known.get(rdd);
    }

    /** What RDDs have in common that a loop makes in every round: operator and call site, but for numbers in them. */
    String kind(int rdd) {
        return kinds.getOrDefault(rdd, "rdd " + rdd);
    }

    /** The signature of a job that ends with this RDD. */
    String ofJob(int rdd) {
        return numbered("job " + known.getOrDefault(rdd, "").split("#")[0]);
    }

    private String sign(RDDInfo info) throws ReflectiveOperationException {
        List<String> parents = new ArrayList<>();
        for (Object parent : Scala.items(info, "parentIds")) {
            parents.add(known.getOrDefault((Integer) parent, ""));
        }
        return numbered(hash(exactly(info) + "|" + String.join(",", parents)));
    }

    private static String exactly(RDDInfo info) {
        return String.join("|", info.name(), info.callSite(), String.valueOf(info.numPartitions()));
    }

    /** The plan of a table numbers its columns and holds its constants, which differ from round to round. */
    private static String kind(RDDInfo info) {
        return NUMBER.matcher(info.name() + "|" + info.callSite()).replaceAll("0");
    }

    private String numbered(String name) {
        return name + "#" + occurrences.merge(name, 1, Integer::sum);
    }

    private static String hash(String text) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
            StringBuilder hex = new StringBuilder();
            for (int index = 0; index < 8; index++) {
                hex.append(String.format("%02x", digest[index]));
            }
            return hex.toString();
        } catch (java.security.NoSuchAlgorithmException error) {
            throw new IllegalStateException(error); // every Java has it
        }
    }
}
