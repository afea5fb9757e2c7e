package io.takeup.bench;

import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerTaskEnd;

/** CPU time of tasks, measured alike with and without the plug-in. */
public final class Measures extends SparkListener {
    private final AtomicLong taskCpuNs = new AtomicLong();

    public static Measures start(SparkContext context) {
        Measures measures = new Measures();
        context.addSparkListener(measures);
        return measures;
    }

    @Override
    public void onTaskEnd(SparkListenerTaskEnd event) {
        if (event.taskMetrics() != null) {
            taskCpuNs.addAndGet(event.taskMetrics().executorCpuTime());
        }
    }

    public double taskCpuS() {
        return taskCpuNs.get() / 1e9;
    }
}
