from takeup.core.trace.columns import TraceColumn as TraceColumn
from takeup.core.trace.read import checksum as checksum
from takeup.core.trace.read import column_names as column_names
from takeup.core.trace.read import read_table as read_table
from takeup.core.trace.write import write_table as write_table
