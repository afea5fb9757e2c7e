package io.takeup.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashSet;
import java.util.Set;

/**
 * The group table on standard input: one event per line as a JSON list, one line of counts of all blocks as the answer.
 * {@code ["reset"]} starts anew.
 */
public final class GroupTableMain {
    private static final ObjectMapper JSON = new ObjectMapper();

    private GroupTableMain() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        Set<Long> changed = new HashSet<>();
        GroupTable table = new GroupTable(changed::add);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode event = JSON.readTree(line);
            if (event.get(0).asText().equals("reset")) {
                table = new GroupTable(changed::add);
            }
            int answer = apply(table, event);
            System.out.println(counts(table, answer, event.get(event.size() - 1).asInt()));
        }
    }

    private static int apply(GroupTable table, JsonNode event) {
        long key = event.get(1).asLong();
        switch (event.get(0).asText()) {
            case "open":
                long[] blocks = new long[event.get(2).size()];
                for (int index = 0; index < blocks.length; index++) {
                    blocks[index] = event.get(2).get(index).asLong();
                }
                table.open(key, blocks, event.get(3).asDouble(), event.get(4).asInt());
                return 0;
            case "close":
                table.close(key);
                return 0;
            case "cached":
                return table.cached(key);
            case "lost":
                return table.lost(key);
            case "forget":
                table.forget(key);
                return 0;
            case "describe":
                table.describe(key, event.get(2).asLong(), event.get(3).asDouble());
                return 0;
            default:
                return 0;
        }
    }

    /** The answer, then for every block rc, erc, whether it is lost, next use, next stage, and its rank under dag. */
    private static String counts(GroupTable table, int answer, int numBlocks) {
        Ranks.Rank dag = Ranks.of("dag", table, 1000, block -> Double.NEGATIVE_INFINITY);
        ArrayNode all = JSON.createArrayNode().add(answer);
        for (long block = 0; block < numBlocks; block++) {
            all.addArray()
                    .add(table.rc(block))
                    .add(table.erc(block))
                    .add(table.isLost(block) ? 1 : 0)
                    .add(finite(table.nextUse(block)))
                    .add(finite(table.nextStage(block)))
                    .add(finite(dag.first(block)));
        }
        return all.toString();
    }

    private static double finite(double value) {
        return Double.isInfinite(value) ? Math.signum(value) * 1e300 : value;
    }
}
