package io.takeup.spark;

import java.util.Arrays;
import java.util.Collection;
import java.util.function.LongToDoubleFunction;

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
    private static final double HORIZON_SHARE = 1;
    private static final double RESOLUTION = 1 << 20;

    private Ranks() {}

    /** After so many bytes touched, savings count for little: the block will hardly stay that long. */
    static double horizonBytes(long capacityBytes) {
        return HORIZON_SHARE * Math.max(1, capacityBytes);
    }

    /**
     * The rank of this name over the table, or null if there is none: then Spark's own order is the policy. {@code
     * writing} is the logarithm of what dropping the block costs at once; only {@code dag} weighs costs.
     */
    static Rank of(String policy, GroupTable table, long capacityBytes, LongToDoubleFunction writing) {
        switch (policy) {
            case "lrc":
                return table::rc;
            case "mrd":
                return block -> -table.nextStage(block);
            case "furthest_next_use":
                return block -> -table.nextUse(block);
            case "lerc":
                return new WithCount(table, table::erc);
            case "dag":
                return new WithCount(table, block -> dagValue(table, block, horizonBytes(capacityBytes), writing));
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
     * Logarithm of what keeping the block saves, per byte: what its next consumers save, discounted by the bytes
     * touched before them, and the writing.
     * See {@code takeup/caching/policies/dag.py}; inputs of a Spark task are computed one after the other, so savings
     * add up.
     */
    private static double dagValue(GroupTable table, long block, double horizonBytes, LongToDoubleFunction writing) {
        double reading = logSavings(table, block, horizonBytes);
        double dropping = writing.applyAsDouble(block);
        double larger = Math.max(reading, dropping);
        if (Double.isInfinite(larger)) {
            return larger;
        }
        double worth = larger + Math.log1p(Math.exp(Math.min(reading, dropping) - larger));
        return Math.floor((worth - Math.log(table.sizeBytes(block))) * RESOLUTION);
    }

    private static double logSavings(GroupTable table, long block, double horizonBytes) {
        double costS = table.costS(block);
        if (costS <= 0 || table.rc(block) == 0) {
            return Double.NEGATIVE_INFINITY;
        }
        double[] positions = nearest(table.groups(block));
        double sum = 0;
        for (double position : positions) {
            sum += Math.exp((positions[0] - position) / horizonBytes);
        }
        return Math.log(costS) - positions[0] / horizonBytes + Math.log(sum);
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
