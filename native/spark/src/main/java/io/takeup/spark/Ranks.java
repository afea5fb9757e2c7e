package io.takeup.spark;

import java.util.Arrays;
import java.util.Collection;

/** The worth of a block under each policy: two numbers, compared in turn; the least worthy block leaves first. */
final class Ranks {
    /** How a policy ranks a block. */
    interface Rank {
        double first(long block);

        default double second(long block) {
            return 0;
        }
    }

    private static final int NUM_CONSUMERS = 8;
    private static final double HORIZON_SHARE = 0.1;
    private static final double RESOLUTION = 1 << 20;

    private Ranks() {}

    /** The rank of this name over the table, or null if there is none: then Spark's own order is the policy. */
    static Rank of(String policy, GroupTable table, long capacityBytes) {
        switch (policy) {
            case "lrc":
                return table::rc;
            case "mrd":
                return block -> -table.nextStage(block);
            case "next":
                return block -> -table.nextUse(block);
            case "lerc":
                return new WithCount(table, table::erc);
            case "dag":
                return new WithCount(table, block -> dagValue(table, block, capacityBytes));
            default:
                return null;
        }
    }

    /** Any rank, and among equals the reference count. */
    private static final class WithCount implements Rank {
        private final GroupTable table;
        private final Rank rank;

        WithCount(GroupTable table, Rank rank) {
            this.table = table;
            this.rank = rank;
        }

        @Override
        public double first(long block) {
            return rank.first(block);
        }

        @Override
        public double second(long block) {
            return table.rc(block);
        }
    }

    /**
     * Logarithm of what the next consumers of the block save, discounted by the bytes touched before them, per byte.
     * See {@code takeup/caching/policies/dag.py}; inputs of a Spark task are computed one after the other, so savings
     * add up.
     */
    private static double dagValue(GroupTable table, long block, long capacityBytes) {
        double costS = table.costS(block);
        if (costS <= 0 || table.rc(block) == 0) {
            return Double.NEGATIVE_INFINITY;
        }
        double[] positions = nearest(table.groups(block));
        double horizonBytes = HORIZON_SHARE * Math.max(1, capacityBytes);
        double sum = 0;
        for (double position : positions) {
            sum += Math.exp((positions[0] - position) / horizonBytes);
        }
        double worth = Math.log(costS) - positions[0] / horizonBytes + Math.log(sum);
        return Math.floor((worth - Math.log(table.sizeBytes(block))) * RESOLUTION);
    }

    private static double[] nearest(Collection<GroupTable.Group> groups) {
        double[] positions = new double[groups.size()];
        int count = 0;
        for (GroupTable.Group group : groups) {
            positions[count++] = group.position;
        }
        Arrays.sort(positions);
        return count <= NUM_CONSUMERS ? positions : Arrays.copyOf(positions, NUM_CONSUMERS);
    }
}
