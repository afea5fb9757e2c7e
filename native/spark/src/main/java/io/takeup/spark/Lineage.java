package io.takeup.spark;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.stream.LongStream;

/**
 * Keeps open a consumer for every block that must still be computed, or computed again.
 *
 * <p>A block that somebody waits for and that is in no memory and on no disk will be computed from its own inputs:
 * these inputs have one more reader, the block itself. That holds before the block is first made and again when it is
 * lost.
 */
final class Lineage {
    private final GroupTable table;
    private final Map<Long, long[]> inputs = new HashMap<>();
    private final Set<Long> onDisk = new HashSet<>();

    Lineage(GroupTable table) {
        this.table = table;
    }

    /** From which persisted blocks the block is computed. */
    void computedFrom(long block, long[] parents) {
        inputs.put(block, parents);
    }

    void open(long consumer, long[] blocks, double position, int stage) {
        table.open(consumer, blocks, position, stage);
        for (long block : blocks) {
            refresh(block);
        }
    }

    void close(long consumer) {
        GroupTable.Group group = table.close(consumer);
        if (group != null) {
            for (long block : group.blocks) {
                refresh(block);
            }
        }
    }

    /** The consumer holds the block: it will not look for it in memory, but still waits for the others of its group. */
    void has(long consumer, long block) {
        GroupTable.Group group = table.group(consumer);
        if (group != null && Arrays.stream(group.blocks).anyMatch(each -> each == block)) {
            open(consumer, replace(group.blocks, block, new long[0]), group.position, group.stage);
            refresh(block);
        }
    }

    /** Once it is made, the block is never computed again. */
    void keptOnDisk(long block) {
        onDisk.add(block);
    }

    /** The block is in memory. Returns how many groups became complete by it. */
    int cached(long block, boolean keepsDiskCopy) {
        if (keepsDiskCopy) {
            keptOnDisk(block);
        }
        int numComplete = table.cached(block);
        refresh(block);
        return numComplete;
    }

    /** The block left memory. Returns how many complete groups broke, and one more if inputs gained a reader. */
    int lost(long block) {
        int numBroken = table.lost(block);
        return numBroken + refresh(block);
    }

    /** The block is unpersisted: who waited for it reads its inputs instead. */
    void forget(long block) {
        long[] parents = inputs.getOrDefault(block, new long[0]);
        for (GroupTable.Group group : table.groups(block).toArray(new GroupTable.Group[0])) {
            long[] instead = replace(group.blocks, block, parents);
            if (instead.length == 0 || group.consumer == Keys.expected(block)) {
                close(group.consumer);
            } else {
                open(group.consumer, instead, group.position, group.stage);
            }
        }
        table.close(block);
        table.forget(block);
        inputs.remove(block);
        onDisk.remove(block);
    }

    private static long[] replace(long[] blocks, long block, long[] parents) {
        LongStream others = Arrays.stream(blocks).filter(other -> other != block);
        return LongStream.concat(others, Arrays.stream(parents)).toArray();
    }

    /** All blocks whose inputs are known. */
    Map<Long, long[]> known() {
        return inputs;
    }

    long[] parents(long block) {
        return inputs.get(block);
    }

    boolean isOnDisk(long block) {
        return onDisk.contains(block);
    }

    /** Opens or closes the block as a consumer of its inputs, and theirs in turn. Returns how many were opened. */
    private int refresh(long start) {
        int numOpened = 0;
        Deque<Long> work = new ArrayDeque<>();
        work.add(start);
        while (!work.isEmpty()) {
            long block = work.poll();
            long[] parents = inputs.get(block);
            if (parents == null || parents.length == 0 || mustBeComputed(block) == (table.group(block) != null)) {
                continue;
            }
            if (mustBeComputed(block)) {
                table.open(block, parents, table.nextUse(block), (int) table.nextStage(block));
                numOpened++;
            } else {
                table.close(block);
            }
            for (long parent : parents) {
                work.add(parent);
            }
        }
        return numOpened;
    }

    private boolean mustBeComputed(long block) {
        boolean isNowhere = table.isLost(block) ? !onDisk.contains(block) : !table.isMade(block);
        return isNowhere && table.rc(block) > 0;
    }
}
