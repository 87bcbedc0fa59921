"""What nvidia-smi prints on several machines.

Samples, put together from outputs that people published and from nvidia-smi(1); none was recorded by this project, except
that driver, name and memory of the H200 are those of the GPU host that it was tried on.
"""

HEADER = (
    "index, uuid, name, driver_version, pci.bus_id, memory.total [MiB], memory.used [MiB], pcie.link.gen.current, "
    "pcie.link.gen.max, pcie.link.width.current, pcie.link.width.max, mig.mode.current, utilization.gpu [%]"
)


def query(*rows: str) -> str:
    """The answer to engine/topology.py:QUERY_GPUS."""
    return "\n".join([HEADER, *rows]) + "\n"


H200 = query("0, GPU-77777777, NVIDIA H200, 580.159.04, 00000000:00:05.0, 143771, 0, 5, 5, 16, 16, Disabled, 0")
H200_PAIR = query(
    "0, GPU-77777777, NVIDIA H200, 580.159.04, 00000000:00:05.0, 143771, 0, 1, 5, 16, 16, Disabled, 0",
    "1, GPU-11111111, NVIDIA H200, 580.159.04, 00000000:00:06.0, 143771, 0, 1, 5, 16, 16, Disabled, 0",
)
# A workstation: one card trained at x8, the other in use by a desktop.
WORKSTATION = query(
    "0, GPU-00000000, NVIDIA RTX PRO 6000 Blackwell, 580.126.20, 00000000:01:00.0, 97887, 18, 1, 5, 8, 16, [N/A], 0",
    "1, GPU-00000001, NVIDIA RTX PRO 6000 Blackwell, 580.126.20, 00000000:C1:00.0, 97887, 4210, 1, 5, 16, 16, [N/A], 37",
)
# A card whose memory is the host's and whose link is no PCIe slot.
GB10 = query("0, GPU-44444444, NVIDIA GB10, 580.142, 0000000F:01:00.0, [N/A], [N/A], 1, 1, 1, 1, [N/A], [N/A]")
MIG = query("0, GPU-55555555, NVIDIA H100 80GB HBM3, 550.54.15, 00000000:4D:00.0, 81559, 87, 5, 5, 16, 16, Enabled, [N/A]")
OLD_DRIVER = query(
    "0, GPU-66666666, Tesla V100-SXM2-16GB, 440.64, 00000000:1A:00.0, 16160, 0, 3, 3, 16, 16, [Not Supported], 0"
)
LOST = query("0, [GPU requires reset], [N/A], [Unknown Error], 00000000:01:00.0, [Unknown Error], [Unknown Error], , , , , , ")

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver "
    "is installed and running.\n"
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
NO_DEVICES = "No devices were found\n"

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
MATRIX_H200_PAIR = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\t0-31\t0\t\tN/A\n"
    "GPU1\tNV18\t X \t0-31\t0\t\tN/A\n" + LEGEND
)
MATRIX_TWO_SOCKETS = (  # on a terminal the header is underlined
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tSYS\tNODE\t0-31,64-95\t0\t\tN/A\n"
    "GPU1\tSYS\t X \tSYS\t32-63,96-127\t1\t\tN/A\n"
    "NIC0\tNODE\tSYS\t X \t\t\t\t\n" + LEGEND + "\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
MATRIX_SUB_NUMA = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tPHB\t0-63\t0-1\t\tN/A\n"
    "GPU1\tPHB\t X \t0-63\tN/A\t\tN/A\n" + LEGEND
)
MATRIX_OLD_DRIVER = (
    "\tGPU0\tGPU1\tmlx4_0\tCPU Affinity\n"
    "GPU0\t X \tSOC\tPHB\t0-9,20-29\n"
    "GPU1\tSOC\t X \tSOC\t10-19,30-39\n"
    "mlx4_0\tPHB\tSOC\t X \t\n"
)
MATRIX_BLANKS = (  # as people paste it
    "        GPU0 GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
    "    GPU0  X      NODE    0-15    0               N/A\n"
    "    GPU1 NODE     X      0-15    0               N/A\n"
)

PROCESSES = "pid, process_name, used_gpu_memory [MiB]\n12806, /usr/bin/python3, 26130\n12807, [Not Found], [N/A]\n"
NO_PROCESSES = "pid, process_name, used_gpu_memory [MiB]\n"
