package io.takeup.spark;

/** Names in the Spark configuration. */
final class Settings {
    static final String POLICY = "spark.takeup.policy";
    static final String PROFILE = "spark.takeup.profile";
    static final String PREFETCH = "spark.takeup.prefetch";
    static final String COUNTERS = "spark.takeup.counters";
    static final String VERSION = "spark.takeup.assumeVersion";

    private Settings() {}
}
