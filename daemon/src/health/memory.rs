//! Memory of the machine and of this process.
use shared::{telemetry::health::MemoryUse, units::Bytes};
use sysinfo::{MemoryRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};

/// Memory as it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Of the machine.
    pub machine: MemoryUse,
    /// Resident in this process, file pages included.
    pub resident: Bytes,
}

/// Reads it anew; values that cannot be read are 0.
pub fn read() -> Memory {
    let refresh = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let Ok(mut system) = System::new_with_specifics(refresh) else { return Memory::default() };
    let own = Pid::from_u32(std::process::id());
    let kind = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), true, kind);
    let resident = system.process(own).map_or(0, sysinfo::Process::memory);
    let machine = MemoryUse {
        total: Bytes(system.total_memory()),
        available: Bytes(system.available_memory()),
        ..MemoryUse::default()
    };
    Memory { machine, resident: Bytes(resident) }
}
