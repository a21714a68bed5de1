//! Names clients may ask for that stand for a way of routing (`virtual_models`).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::fleet::FleetNames;
use super::name::model_name;
use super::reader::Section;
use super::routing::read_weights;
use crate::domain::destination::NodeClass;
use crate::domain::request::{Constraints, Weights};
use crate::routing::params::TimeTerm;
use crate::units::{Quality, Seconds};

/// `virtual_models[]`: every destination is a candidate, within the constraints.
#[derive(Debug, Clone, PartialEq)]
pub struct VirtualModel {
    /// `name` (required), no public model's and unique.
    pub name: Arc<str>,
    /// `placement` and `min_quality` in 0 to 1: hard constraints; `deadline_ms` 1 to a day: kept where a destination
    /// can. None by default.
    pub constraints: Constraints,
    /// `weights` in place of the fleet's.
    pub weights: Option<Weights>,
    /// `time` in place of the fleet's time term.
    pub time: Option<TimeTerm>,
}

/// The virtual model there is where none is configured.
const DEFAULT_NAME: &str = "auto";
/// Longest `deadline_ms`: a day.
const DAY_MS: f64 = 86_400_000.0;

/// Reads `virtual_models`. Without the key there is `auto`, which routes anywhere; an empty list means none.
pub(super) fn read_virtual_models(root: &mut Section<'_>, fleet: &FleetNames) -> Vec<VirtualModel> {
    let Some(field) = root.get("virtual_models") else {
        let name: Arc<str> = DEFAULT_NAME.into();
        let taken = fleet.models.contains(&name);
        let auto = VirtualModel { name, constraints: Constraints::default(), weights: None, time: None };
        return if taken { Vec::new() } else { vec![auto] };
    };
    let mut names = BTreeSet::new();
    let items = field.items("a list of virtual models with `name`");
    items.iter().filter_map(|item| item.section(|s| read_virtual_model(s, fleet, &mut names))?).collect()
}

fn read_virtual_model(
    s: &mut Section<'_>,
    fleet: &FleetNames,
    names: &mut BTreeSet<Arc<str>>,
) -> Option<VirtualModel> {
    let name = s.require("name", "the name clients ask for").and_then(|field| model_name(&field));
    if let Some(name) = &name {
        if fleet.models.contains(name) {
            s.fault("name", "a model of the fleet has this name", "a name that no model has");
        }
        if !names.insert(Arc::clone(name)) {
            s.fault(
                "name",
                "another virtual model has this name",
                "a name of its own for each virtual model",
            );
        }
    }
    let placement = s.get("placement").and_then(|field| field.choice(NodeClass::ALL));
    if placement.is_some_and(|class| !fleet.incomplete && !fleet.classes.contains(&class)) {
        let classes: Vec<_> = fleet.classes.iter().map(NodeClass::to_string).collect();
        s.fault("placement", "no node is of this class", &classes.join(", "));
    }
    let min_quality = s.get("min_quality").and_then(|field| field.float(&(0.0..=1.0), "")).map(Quality);
    let deadline =
        s.get("deadline_ms").and_then(|field| field.float(&(1.0..=DAY_MS), "")).map(Seconds::from_ms);
    let weights = s.get("weights").and_then(|field| read_weights(&field));
    let time = s.get("time").and_then(|field| field.choice(TimeTerm::ALL));
    let constraints = Constraints { placement, min_quality, deadline };
    name.map(|name| VirtualModel { name, constraints, weights, time })
}
