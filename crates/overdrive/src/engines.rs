//! Turns `--backends` into the parties of a comparison: our own devices, and other engines.

use crate::cli::Machine;
use crate::devices::{self, Opened};
use crate::failure::Failure;
use crate::terminal::note;
use overdrive::cuda::cache::Cache;
use overdrive::ir::{Backend, Description, Mode};
use overdrive::studies::Device;
use overdrive_foreign::{ENGINES, Engine, EngineDevice, OpenRequest, OriginalFile, Places};
use std::path::PathBuf;

/// Who takes part, in the order of the table: the first is what the others are compared with.
pub(crate) struct Contestants {
    all: Vec<Contestant>,
    places: Places,
    threads: usize,
}

enum Contestant {
    /// A device of our own.
    Own(Opened),
    /// An engine; where the user named it, it is an error when it does not start.
    Engine { engine: &'static dyn Engine, is_named: bool },
}

/// The places to look for engines in.
pub(crate) fn places(libraries: &[(String, PathBuf)]) -> Places {
    let installed = Cache::root_of_user().map(|root| root.join("engines"));
    Places { named: libraries.iter().cloned().collect(), installed }
}

impl Contestants {
    /// Those of these names, or the device of `--device` with every engine that is found for it.
    pub(crate) fn choose(
        names: Option<&[String]>,
        machine: &Machine,
        libraries: &[(String, PathBuf)],
    ) -> Result<Self, Failure> {
        let (places, threads) = (places(libraries), devices::threads(machine));
        let all = match names {
            Some(names) => named(names, machine, &places)?,
            None => {
                let own = devices::open(machine)?;
                let engines = found(&own, &places);
                std::iter::once(Contestant::Own(own)).chain(engines).collect()
            }
        };
        Ok(Self { all, places, threads })
    }

    /// Every engine that is found for a device of ours, without that device.
    pub(crate) fn beside(own: &Opened, machine: &Machine) -> Self {
        let places = places(&[]);
        Self { all: found(own, &places).collect(), places, threads: devices::threads(machine) }
    }

    /// Our own devices.
    pub(crate) fn own(&self) -> impl Iterator<Item = &Opened> {
        self.all.iter().filter_map(|contestant| match contestant {
            Contestant::Own(own) => Some(own),
            Contestant::Engine { .. } => None,
        })
    }

    /// Starts the engines, `None` in the place of our own devices and of what does not start.
    pub(crate) fn start(
        &self,
        model: Option<&OriginalFile>,
        (cpu, gpu): (&Description, Option<&Description>),
    ) -> Result<Vec<Option<Box<dyn Backend>>>, Failure> {
        let start = |contestant: &Contestant| match contestant {
            Contestant::Own(_) => Ok(None),
            Contestant::Engine { engine, is_named } => {
                let device = device_of(*engine, (cpu, gpu))?;
                match engine.open(&self.request(device, model)) {
                    Ok(backend) => Ok(Some(backend)),
                    Err(missing) if *is_named => Err(Failure::bad_input(missing)),
                    Err(missing) => {
                        note!("note: left out: {missing}");
                        Ok(None)
                    }
                }
            }
        };
        self.all.iter().map(start).collect()
    }

    fn request<'a>(
        &'a self,
        device: &'a Description,
        original: Option<&'a OriginalFile>,
    ) -> OpenRequest<'a> {
        let ordinal = device.device.strip_prefix("cuda:").and_then(|n| n.parse().ok()).unwrap_or(0);
        OpenRequest { device, threads: self.threads, ordinal, places: &self.places, original }
    }

    /// Everybody as a device to be measured; ours are marked.
    pub(crate) fn devices<'a>(
        &'a self,
        started: &'a [Option<Box<dyn Backend>>],
    ) -> Vec<(Whose, Device<'a>)> {
        let device = |(contestant, started): (&'a Contestant, &'a Option<Box<dyn Backend>>)| {
            match contestant {
                Contestant::Own(own) => Some((
                    Whose::Ours,
                    Device { backend: own.backend.as_ref(), threads: own.threads },
                )),
                Contestant::Engine { engine, .. } => {
                    let backend = started.as_deref()?;
                    let device = Device { backend, threads: self.threads as u32 };
                    Some((Whose::Theirs(engine.modes()), device))
                }
            }
        };
        self.all.iter().zip(started).filter_map(device).collect()
    }

    /// Name and version of each engine.
    pub(crate) fn described(&self) -> Vec<String> {
        let described = |contestant: &Contestant| match contestant {
            Contestant::Own(_) => None,
            Contestant::Engine { engine, .. } => {
                let found = engine.find(&self.places).ok()?;
                Some(format!("{} {}: {}", engine.name(), found.version, engine.about()))
            }
        };
        self.all.iter().filter_map(described).collect()
    }
}

/// The owner of a device's back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Overdrive's.
    Ours,
    /// An engine's, which has these modes.
    Theirs(&'static [Mode]),
}

impl Whose {
    /// The modes to measure of those that the user asked for, and those of them that do not exist
    /// there. A mode that a device of ours lacks has a row with its reason.
    pub(crate) fn modes(self, asked: Option<&[Mode]>) -> [Vec<Mode>; 2] {
        match (asked, self) {
            (Some(asked), Self::Theirs(has)) => {
                let (there, absent) = asked.iter().copied().partition(|mode| has.contains(mode));
                [there, absent]
            }
            (Some(asked), Self::Ours) => [asked.to_vec(), vec![]],
            (None, Self::Ours) => [vec![Mode::Eager, Mode::Jit, Mode::Compile], vec![]],
            (None, Self::Theirs(_)) => [vec![Mode::Compile], vec![]],
        }
    }
}

/// The engines that this machine has for what a device of ours is.
fn found<'a>(own: &Opened, places: &'a Places) -> impl Iterator<Item = Contestant> + use<'a> {
    let place = if own.described.is_some() { EngineDevice::Gpu } else { EngineDevice::Processor };
    let there =
        move |engine: &&&dyn Engine| engine.runs_on() == place && engine.find(places).is_ok();
    ENGINES.iter().filter(there).map(|&engine| Contestant::Engine { engine, is_named: false })
}

/// Our description of the device that an engine runs on.
fn device_of<'a>(
    engine: &dyn Engine,
    (cpu, gpu): (&'a Description, Option<&'a Description>),
) -> Result<&'a Description, Failure> {
    match engine.runs_on() {
        EngineDevice::Processor => Ok(cpu),
        EngineDevice::Gpu => gpu.ok_or_else(|| {
            let name = engine.name();
            let remedy = format!("name ours beside it, as in `--backends cuda:0,{name}`");
            Failure::bad_input(format!("{name} runs on a GPU: {remedy}"))
        }),
    }
}

fn named(names: &[String], machine: &Machine, places: &Places) -> Result<Vec<Contestant>, Failure> {
    let contestant = |name: &String| {
        if name == "cpu" || name.starts_with("cuda:") {
            let machine = Machine { device: name.clone(), ..machine.clone() };
            return devices::open(&machine).map(Contestant::Own);
        }
        let engine = overdrive_foreign::find(name).map_err(Failure::bad_input)?;
        engine.find(places).map_err(Failure::bad_input)?;
        Ok(Contestant::Engine { engine, is_named: true })
    };
    names.iter().map(contestant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_that_an_engine_lacks_is_no_row_of_it() {
        let asked = [Mode::Graph, Mode::Compile, Mode::Eager];
        let of = |whose: Whose| whose.modes(Some(&asked));
        assert_eq!(
            of(Whose::Theirs(&[Mode::Compile])),
            [vec![Mode::Compile], vec![Mode::Graph, Mode::Eager]]
        );
        assert_eq!(of(Whose::Ours), [asked.to_vec(), vec![]]);
        assert_eq!(Whose::Theirs(&[Mode::Eager, Mode::Compile]).modes(None)[0], [Mode::Compile]);
    }
}
