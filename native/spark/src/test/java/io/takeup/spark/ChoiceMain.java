package io.takeup.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.RDDBlockId;

/**
 * Who leaves, on standard input: events under {@code dag} as JSON lists, one per line. Blocks are numbers, each of its
 * own RDD, those from 100 on of the RDD of their hundreds, and of 1,000 bytes. {@code ["choose", block]} prints the blocks that leave for it, or "stays out".
 */
public final class ChoiceMain {
    private static final long SIZE_BYTES = 1000;

    private ChoiceMain() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        BlockRanks ranks = new BlockRanks("dag", true, 10 * SIZE_BYTES);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            apply(ranks, new ObjectMapper().readTree(line));
        }
    }

    private static void apply(BlockRanks ranks, JsonNode event) {
        int number = event.get(1).asInt();
        BlockId id = id(number);
        switch (event.get(0).asText()) {
            case "arrives": // level keeps it on disk, is on disk already, for this task
                long task = Keys.task(1, event.path(4).asInt(-1));
                ranks.arriving(id, task, event.get(2).asBoolean(), event.get(3).asBoolean());
                break;
            case "stored": // seconds to bring it back
                ranks.stored(id, SIZE_BYTES, MemoryMode.ON_HEAP, event.get(2).asDouble());
                break;
            case "leftOnDisk":
                ranks.leftOnDisk(id);
                break;
            case "reader": // task, position
                open(ranks, id, Keys.task(1, event.get(2).asInt()), event.get(3).asDouble());
                break;
            case "readers": // lists of block, task and position, each in a message, all sent as one
                List<Object[]> messages = new ArrayList<>();
                event.get(2).forEach(reader -> messages.add(opening(
                        id(reader.get(0).asInt()),
                        Keys.task(1, reader.get(1).asInt()),
                        reader.get(2).asDouble())));
                ranks.apply(Messages.all(messages));
                break;
            case "foretold": // a task of a later job, position
                open(ranks, id, Keys.future(event.get(2).asInt()), event.get(3).asDouble());
                break;
            case "room": // bytes of memory
                ranks.hasRoomFor(event.get(2).asLong());
                break;
            case "removed":
                ranks.removed(id);
                break;
            case "read":
                ranks.read(id, true);
                break;
            case "saved": // hits of Spark's own rule, and seconds saved compared with it
                System.out.printf(java.util.Locale.ROOT, "%d %.1f%n", ranks.stockHits(), ranks.savedS());
                break;
            case "prefetch": // bytes of room
                System.out.println(ranks.takeNextFromDisk(event.get(2).asLong()));
                break;
            default:
                BlockRanks.Choice choice =
                        ranks.choose(id, false, SIZE_BYTES, SIZE_BYTES, MemoryMode.ON_HEAP, victim -> true);
                System.out.println(choice.isEnough ? choice.victims : "stays out");
        }
    }

    private static BlockId id(int number) {
        return number < 100 ? new RDDBlockId(number, 0) : new RDDBlockId(number / 100, number % 100);
    }

    private static void open(BlockRanks ranks, BlockId id, long consumer, double position) {
        ranks.apply(opening(id, consumer, position));
    }

    private static Object[] opening(BlockId id, long consumer, double position) {
        long[] blocks = {BlockRanks.key(id)};
        return Messages.open(List.of(new GroupTable.Group(consumer, blocks, position, 1)));
    }
}
