package io.takeup.spark;

import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.SparkContext;
import org.apache.spark.Success$;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerBlockUpdated;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerUnpersistRDD;
import org.apache.spark.scheduler.Stage;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.storage.BlockUpdatedInfo;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Spark's events for the coordinator. An event that cannot be understood is passed over, with one line in the log. */
final class JobListener extends SparkListener {
    private static final Logger LOG = LoggerFactory.getLogger(JobListener.class);
    private static final int NUM_TRIES = 5;
    private static final int MAX_TASKS = 200_000;

    private final SparkContext context;
    private final Coordinator coordinator;
    private final Runnable atEnd;
    final AtomicLong taskCpuNs = new AtomicLong();
    final AtomicLong tasks = new AtomicLong();
    final AtomicLong listenerNs = new AtomicLong();
    final AtomicLong failures = new AtomicLong();

    /** Something that may fail. */
    private interface Step {
        void run() throws Exception;
    }

    JobListener(SparkContext context, Coordinator coordinator, Runnable atEnd) {
        this.context = context;
        this.coordinator = coordinator;
        this.atEnd = atEnd;
    }

    @Override
    public void onJobStart(SparkListenerJobStart event) {
        guard(() -> {
            JobGraph graph = graph(event);
            coordinator.jobStarted(event.jobId(), graph);
        });
    }

    /** From the RDDs themselves if they can be walked, else from the descriptions in the announcement of the job. */
    private JobGraph graph(SparkListenerJobStart event) throws Exception {
        Map<Integer, StageInfo> stages = new TreeMap<>();
        int numTasks = 0;
        for (Object info : Scala.items(event, "stageInfos")) {
            stages.put(((StageInfo) info).stageId(), (StageInfo) info);
            numTasks += ((StageInfo) info).numTasks();
        }
        for (int tries = 0; tries < NUM_TRIES && numTasks <= MAX_TASKS; tries++) {
            try {
                return walk(stages);
            } catch (RuntimeException | ReflectiveOperationException | StackOverflowError error) {
                LOG.debug("takeup: stages of job {} changed while they were read", event.jobId(), error);
            }
        }
        JobGraph graph = new JobGraph(coordinator::knowsLineage);
        for (StageInfo stage : stages.values()) {
            if (numTasks <= MAX_TASKS) {
                graph.addByDescription(stage);
            } else {
                graph.describe(stage); // so many readers would cost more than they save
            }
        }
        return graph;
    }

    /** The scheduler's stages belong to another thread, so reading them may fail. */
    private JobGraph walk(Map<Integer, StageInfo> stages) throws ReflectiveOperationException {
        JobGraph graph = new JobGraph(coordinator::knowsLineage);
        for (StageInfo info : stages.values()) {
            graph.describe(info);
            Object stage = Scala.lookUp(context.dagScheduler(), "stageIdToStage", info.stageId());
            if (stage != null) { // else it is over already
                graph.add((Stage) stage);
            }
        }
        graph.walkLineage();
        return graph;
    }

    @Override
    public void onTaskEnd(SparkListenerTaskEnd event) {
        guard(() -> {
            tasks.incrementAndGet();
            if (event.taskMetrics() != null) {
                taskCpuNs.addAndGet(event.taskMetrics().executorCpuTime());
            }
            if (event.reason() == Success$.MODULE$) {
                int partition = event.taskInfo().partitionId();
                coordinator.taskEnded(event.stageId(), partition, event.taskInfo().executorId());
            }
        });
    }

    @Override
    public void onJobEnd(SparkListenerJobEnd event) {
        guard(() -> coordinator.jobEnded(event.jobId()));
    }

    @Override
    public void onBlockUpdated(SparkListenerBlockUpdated event) {
        guard(() -> {
            BlockUpdatedInfo info = event.blockUpdatedInfo();
            long block = BlockRanks.key(info.blockId());
            if (block >= 0) {
                long memoryBytes = info.storageLevel().useMemory() ? info.memSize() : 0;
                coordinator.blockUpdated(info.blockManagerId().executorId(), block, memoryBytes);
            }
        });
    }

    @Override
    public void onUnpersistRDD(SparkListenerUnpersistRDD event) {
        guard(() -> coordinator.unpersisted(event.rddId()));
    }

    @Override
    public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
        guard(() -> coordinator.executorRemoved(event.executorId()));
    }

    @Override
    public void onApplicationEnd(SparkListenerApplicationEnd event) {
        guard(atEnd::run);
    }

    /** Wait until all that has happened so far was heard, for so long at most. */
    void hearOut(long patienceMs) {
        try {
            context.listenerBus().waitUntilEmpty(patienceMs);
        } catch (Exception error) {
            LOG.debug("takeup: not all was heard in time", error);
        }
    }

    private void guard(Step step) {
        long beganNs = System.nanoTime();
        try {
            step.run();
        } catch (Exception | LinkageError | StackOverflowError error) {
            if (failures.getAndIncrement() == 0) {
                LOG.warn("takeup: some jobs are not foreseen, because {}", error.toString(), error);
            }
        } finally {
            listenerNs.addAndGet(System.nanoTime() - beganNs);
        }
    }
}
