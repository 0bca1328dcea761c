//! The files of a Raspberry Pi's machine, for daemons that read their health from them: a well one, and one that is hot and badly supplied.
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const CLOCK: &str = "sys/devices/system/cpu/cpufreq/policy0";
const ZONE: &str = "sys/class/thermal/thermal_zone0";
const FIRMWARE: &str = "sys/devices/platform/soc/soc:firmware/get_throttled";

/// A machine that is played.
#[derive(Clone, Debug)]
pub(super) struct Machine(PathBuf);

impl Machine {
    /// A well one, below a folder.
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

    /// Where a daemon reads it.
    pub(super) fn root(&self) -> &Path {
        &self.0
    }

    /// From now on it is throttled, or well.
    pub(super) fn play(&self, throttled: bool) -> io::Result<()> {
        let (temperature, clock, bits) =
            if throttled { ("84241", "600000", "50005") } else { ("52582", "1800000", "0") };
        self.write(&format!("{ZONE}/temp"), temperature)?;
        self.write(&format!("{CLOCK}/scaling_cur_freq"), clock)?;
        self.write(FIRMWARE, bits)
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("each of the files lies in a folder"))?;
        // Whole at once: the daemon may read at any moment.
        let next = path.with_extension("next");
        fs::write(&next, format!("{text}\n"))?;
        fs::rename(next, path)
    }
}
