//! Simulates the health files of a Raspberry Pi for a daemon started with `--health-root`: a healthy machine, or one
//! that is hot and undervolted.
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const CLOCK: &str = "sys/devices/system/cpu/cpufreq/policy0";
const ZONE: &str = "sys/class/thermal/thermal_zone0";
const FIRMWARE: &str = "sys/devices/platform/soc/soc:firmware/get_throttled";

/// The root folder of a simulated machine.
#[derive(Clone, Debug)]
pub(super) struct Machine(PathBuf);

impl Machine {
    /// Creates a healthy machine below a folder.
    pub(super) fn make(folder: &Path) -> io::Result<Self> {
        let machine = Self(folder.into());
        let fixed = [
            (format!("{ZONE}/type"), "cpu-thermal"),
            (format!("{CLOCK}/scaling_max_freq"), "1800000"),
            (format!("{CLOCK}/cpuinfo_max_freq"), "1800000"),
            (format!("{CLOCK}/scaling_driver"), "cpufreq-dt"),
            (format!("{CLOCK}/scaling_governor"), "ondemand"),
        ];
        fixed.iter().try_for_each(|(path, text)| machine.write(path, text))?;
        machine.play(false)?;
        Ok(machine)
    }

    /// The folder for `--health-root`.
    pub(super) fn root(&self) -> &Path {
        &self.0
    }

    /// Makes the machine throttled or healthy.
    pub(super) fn play(&self, throttled: bool) -> io::Result<()> {
        let (temperature, clock, bits) =
            if throttled { ("84241", "600000", "50005") } else { ("52582", "1800000", "0") };
        self.write(&format!("{ZONE}/temp"), temperature)?;
        self.write(&format!("{CLOCK}/scaling_cur_freq"), clock)?;
        self.write(FIRMWARE, bits)
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("every file is in a folder"))?;
        // Replaced atomically, because the daemon may read at any moment.
        let next = path.with_extension("next");
        fs::write(&next, format!("{text}\n"))?;
        fs::rename(next, path)
    }
}
