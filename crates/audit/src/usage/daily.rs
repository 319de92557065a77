//! The uses of prompts by day, for the list of prompts.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Days of a week, in UTC; the last one has not ended.
pub const WEEK_DAYS: usize = 7;

/// The uses of prompts on each day of the last week.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct DailyUses {
    /// By public name, oldest day first. Prompts without uses are left out.
    pub prompts: HashMap<String, [u64; WEEK_DAYS]>,
    /// Whether not all uses are known.
    pub is_partial: bool,
}

impl DailyUses {
    /// Returns the uses of a prompt.
    pub fn of(&self, prompt: &str) -> [u64; WEEK_DAYS] {
        self.prompts.get(prompt).copied().unwrap_or_default()
    }

    /// Adds uses on a day of the week, from 0.
    pub(super) fn add(&mut self, prompt: &str, day: usize, uses: u64) {
        if uses == 0 || day >= WEEK_DAYS {
            return;
        }
        let days = match self.prompts.get_mut(prompt) {
            Some(days) => days,
            None => self.prompts.entry(prompt.to_owned()).or_default(),
        };
        days[day] = days[day].saturating_add(uses);
    }

    /// Adds the uses of another replica.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (prompt, days) in &other.prompts {
            for (day, uses) in days.iter().enumerate() {
                self.add(prompt, day, *uses);
            }
        }
        self.is_partial |= other.is_partial;
    }
}
