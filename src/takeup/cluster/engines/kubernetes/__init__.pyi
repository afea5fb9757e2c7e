from takeup.cluster.engines.kubernetes.client import ApiAccess as ApiAccess
from takeup.cluster.engines.kubernetes.client import Client as Client
from takeup.cluster.engines.kubernetes.client import find_access as find_access
from takeup.cluster.engines.kubernetes.engine import KubernetesEngine as KubernetesEngine
from takeup.cluster.engines.kubernetes.engine import StaleCache as StaleCache
from takeup.cluster.engines.kubernetes.objects import Dialect as Dialect
from takeup.cluster.engines.kubernetes.writer import Kueue as Kueue
from takeup.cluster.engines.kubernetes.writer import QuotaStore as QuotaStore
