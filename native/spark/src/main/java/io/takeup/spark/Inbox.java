package io.takeup.spark;

import java.util.function.Function;
import org.apache.spark.rpc.RpcCallContext;
import org.apache.spark.rpc.RpcEndpoint;
import org.apache.spark.rpc.RpcEnv;
import scala.PartialFunction;
import scala.runtime.AbstractPartialFunction;
import scala.runtime.BoxedUnit;

/** The place in an executor where the driver's messages arrive, one after the other. */
final class Inbox implements RpcEndpoint {
    private final RpcEnv env;
    private final Function<Object[], Object> handler;

    Inbox(RpcEnv env, Function<Object[], Object> handler) {
        this.env = env;
        this.handler = handler;
    }

    @Override
    public RpcEnv rpcEnv() {
        return env;
    }

    @Override
    public PartialFunction<Object, BoxedUnit> receive() {
        return new Handler() {
            @Override
            void handle(Object[] message) {
                handler.apply(message);
            }
        };
    }

    @Override
    public PartialFunction<Object, BoxedUnit> receiveAndReply(RpcCallContext caller) {
        return new Handler() {
            @Override
            void handle(Object[] message) {
                caller.reply(handler.apply(message));
            }
        };
    }

    private abstract static class Handler extends AbstractPartialFunction<Object, BoxedUnit> {
        abstract void handle(Object[] message);

        @Override
        public boolean isDefinedAt(Object message) {
            return message instanceof Object[];
        }

        @Override
        public BoxedUnit apply(Object message) {
            handle((Object[]) message);
            return BoxedUnit.UNIT;
        }

        @Override
        @SuppressWarnings("unchecked")
        public <A1, B1> B1 applyOrElse(A1 message, scala.Function1<A1, B1> otherwise) {
            return isDefinedAt(message) ? (B1) apply(message) : otherwise.apply(message);
        }
    }
}
