//! What all readers of one document share: where faults are noted, and what is taken from outside the document.

use std::cell::RefCell;
use std::path::Path;

use super::fault::Fault;
use super::outline::Outline;

/// Most faults kept; a file with more is not a configuration.
const MAX_FAULTS: usize = 1_000;

/// What all readers of one document share.
pub(super) struct Report<'a> {
    faults: RefCell<Vec<Fault>>,
    /// Looks up an environment variable.
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    /// Folder that relative paths start from.
    pub(super) folder: &'a Path,
    /// Where secrets need not be at hand: the variables and files that are not.
    absent_secrets: Option<RefCell<Vec<String>>>,
    /// Where nothing is read, but noted what would be.
    pub(super) outline: Option<Outline>,
}

impl<'a> Report<'a> {
    pub(super) fn new(env: &'a dyn Fn(&str) -> Option<String>, folder: &'a Path) -> Self {
        Self { faults: RefCell::new(Vec::new()), env, folder, absent_secrets: None, outline: None }
    }

    /// One for which variables and files with secrets may be absent.
    pub(super) fn without_secrets(self) -> Self {
        Self { absent_secrets: Some(RefCell::new(Vec::new())), ..self }
    }

    /// One that notes what is asked for.
    pub(super) fn outlining(self, outline: Outline) -> Self {
        Self { outline: Some(outline), ..self }
    }

    /// What was noted, where something was to be.
    pub(super) fn into_outline(self) -> Option<Outline> {
        self.outline
    }

    /// The secrets that are not at hand, where they need not be.
    pub(super) fn absent_secrets(&self) -> Vec<String> {
        self.absent_secrets.as_ref().map(|absent| absent.borrow().clone()).unwrap_or_default()
    }

    /// Whether `secret` may be absent; it is noted then.
    pub(super) fn may_lack(&self, secret: String) -> bool {
        if let Some(absent) = &self.absent_secrets {
            absent.borrow_mut().push(secret);
        }
        self.absent_secrets.is_some()
    }

    /// Notes a fault.
    pub(super) fn push(&self, fault: Fault) {
        let mut faults = self.faults.borrow_mut();
        // A document with everything in it contradicts itself.
        if self.outline.is_none() && faults.len() < MAX_FAULTS {
            faults.push(fault);
        }
    }

    /// Faults noted so far.
    pub(super) fn fault_count(&self) -> usize {
        self.faults.borrow().len()
    }

    /// Every fault, in order of lines.
    pub(super) fn into_faults(self) -> Vec<Fault> {
        let mut faults = self.faults.into_inner();
        faults.sort_by_key(|fault| fault.line);
        faults
    }
}
