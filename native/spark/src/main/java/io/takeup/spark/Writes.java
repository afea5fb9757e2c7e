package io.takeup.spark;

import java.util.HashSet;
import java.util.Set;

/**
 * What it costs to drop a block that must be written first: its level keeps it on disk, and it is not there yet.
 *
 * <p>That cost is due at once. The savings of readers are counted for the moments at which they come, so the cost is
 * put at the present moment: the position of the last task that ended here.
 */
final class Writes {
    private static final double COST_S_PER_BYTE = 1e-8; // as if the disk took 100 MB/s

    private final Lineage lineage;
    private final GroupTable table;
    private final double horizonBytes;
    private final Set<Long> written = new HashSet<>();
    private double nowBytes;
    private double rankedBytes; // the present moment when ranks were last brought up to date

    Writes(Lineage lineage, GroupTable table, double horizonBytes) {
        this.lineage = lineage;
        this.table = table;
        this.horizonBytes = horizonBytes;
    }

    void written(long block) {
        written.add(block);
    }

    void forget(long block) {
        written.remove(block);
    }

    /** A task at this position has ended. True if so much has happened that ranks must be brought up to date. */
    boolean advance(double positionBytes) {
        nowBytes = Math.max(nowBytes, positionBytes);
        boolean isStale = nowBytes - rankedBytes > horizonBytes;
        rankedBytes = isStale ? nowBytes : rankedBytes;
        return isStale;
    }

    boolean mustBeWritten(long block) {
        return lineage.isOnDisk(block) && !written.contains(block);
    }

    /** Logarithm of the cost of dropping the block, as of the present moment. */
    double logWorth(long block) {
        return mustBeWritten(block)
                ? Math.log(COST_S_PER_BYTE * table.sizeBytes(block)) - rankedBytes / horizonBytes
                : Double.NEGATIVE_INFINITY;
    }
}
