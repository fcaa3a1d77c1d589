//! The receive filters of a NIC as a destination of programs: which packets go to which of its queues, or are
//! dropped, before a core sees them.
//!
//! ethtool calls the filters *ntuple rules*, and the tables that spread packets over several queues *RSS
//! contexts*. A [`FilterModel`] states what the filters of a driver match. [`carve`] turns a compiled program
//! into [`WantedFilters`], or lists why it cannot. A [`Carving`] puts them on an interface, changes them by
//! their difference and removes them; it keeps a [`Ledger`] of its filters, so that those of others are never
//! touched, also after the process was killed. [`drops`] finds the drop rules of a program for workers that a
//! NIC can carry out before them, and [`EarlyDrops`] changes their filters with the program. [`NicFilters`]
//! is the interface: [`InterfaceFilters`] is one of the kernel, [`ModelledNic`] is one for tests.
//!
//! ```
//! use nic_filters::{FilterModel, FilterRoom, carve};
//! use policy::{NoFiles, Source};
//!
//! let text = "version = 1\n[groups.zc]\nqueues = [4]\n[[rules]]\nname = 'dns'\n\
//!     match = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'zc' }\n";
//! let (policy, _) = policy::parse(&Source::new("carve.toml", text), &NoFiles)?;
//! let model = FilterModel::by_driver("mlx5_core");
//! let room = FilterRoom { queues: Some(8), ..FilterRoom::default() };
//! let program = compiler::compile(&policy, &model.device(room), 8)?;
//! let filters = carve(&program, &model, room).expect("the NIC matches UDP ports");
//! let texts: Vec<String> = filters.filters.iter().map(|wanted| wanted.matches.to_string()).collect();
//! assert_eq!(texts, ["udp4 dst_port 53", "udp6 dst_port 53"]);
//! # Ok::<(), policy::Diagnostics>(())
//! ```
#![forbid(unsafe_code)]

mod carving;
mod drops;
mod early_drops;
mod filter;
mod interface;
mod ledger;
mod model;
mod modelled;
mod nic;
mod plan;
mod probe;
mod translate;
mod wire_format;

pub use carving::{AddedDrops, CarveError, Carving, ChangeSummary, Deviation, FilterSurvey};
pub use drops::{DropRefusal, WantedDrops, drops};
pub use early_drops::{DropFigures, EarlyDrops};
pub use filter::{Destination, FieldBits, Filter, FilterKind, FilterMatch};
pub use interface::InterfaceFilters;
pub use ledger::{Ledger, LedgerContext, LedgerFilter, LedgerStore};
pub use model::{FieldRow, FilterModel, FilterOrder, MaskRule, ModelError};
pub use modelled::{ModelledNic, NicDecision};
pub use nic::{FilterRoom, ListedFilter, NicError, NicFacts, NicFilters};
pub use plan::PlanError;
pub use probe::probe;
pub use translate::{CarveRefusal, RuleRefusal, Target, WantedFilter, WantedFilters, carve};
