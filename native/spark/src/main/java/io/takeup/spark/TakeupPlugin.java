package io.takeup.spark;

import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;

/** The class to name in {@code spark.plugins}. */
public final class TakeupPlugin implements SparkPlugin {
    @Override
    public DriverPlugin driverPlugin() {
        return new DriverHalf();
    }

    @Override
    public ExecutorPlugin executorPlugin() {
        return new ExecutorHalf();
    }

    /** The counters of the running application as JSON, or of the last one; null before the first. */
    public static String counters() {
        return DriverHalf.currentCounters();
    }
}
