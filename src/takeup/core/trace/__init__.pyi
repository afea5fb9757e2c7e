from takeup.core.trace.table import TraceColumn as TraceColumn
from takeup.core.trace.table import column_names as column_names
from takeup.core.trace.table import read_table as read_table
