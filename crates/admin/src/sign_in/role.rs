//! Roles of visitors.

/// The rights of a visitor. Each role includes the rights of those before it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Role {
    /// Looks.
    Viewer,
    /// Tries prompts.
    Tester,
    /// Decides on prompts.
    Approver,
}

impl Role {
    const ALL: [Self; 3] = [Self::Viewer, Self::Tester, Self::Approver];

    /// Returns the role of everyone who has `admin.token`.
    pub(super) fn of_token(admin: &config::Admin) -> Self {
        Self::Approver.permitted(admin)
    }

    /// Returns the highest role that the groups of a person give; `None` if none of the groups has
    /// a role.
    pub(super) fn of_groups(
        admin: &config::Admin,
        oidc: &config::Oidc,
        groups: &[String],
    ) -> Option<Self> {
        let is_named = |role: &Self| role.groups(oidc).iter().any(|named| groups.contains(named));
        Self::ALL.into_iter().rev().find(is_named).map(|role| role.permitted(admin))
    }

    /// Returns the groups that have this role.
    pub(super) fn groups(self, oidc: &config::Oidc) -> &[String] {
        match self {
            Self::Viewer => &oidc.viewers,
            Self::Tester => &oidc.testers,
            Self::Approver => &oidc.approvers,
        }
    }

    /// Without `admin.write` no role may decide on prompts.
    fn permitted(self, admin: &config::Admin) -> Self {
        if admin.write { self } else { self.min(Self::Tester) }
    }

    /// Returns the name of the role in records and documents.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Tester => "tester",
            Self::Approver => "approver",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign_in::tests::admin;

    #[test]
    fn roles_follow_groups_and_are_capped_without_write() {
        let oidc = "[admin.oidc]\nissuer = \"https://id.example\"\nclient_id = \"c\"\n\
            viewers = [\"all\"]\ntesters = [\"qa\"]\napprovers = [\"leads\", \"all-leads\"]\n";
        let groups = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let write = admin(&format!("token = {{ value = \"t\" }}\nwrite = true\n{oidc}"));
        let read = admin(&format!("token = {{ value = \"t\" }}\n{oidc}"));
        for (names, with_write, without) in [
            (&[][..], None, None),
            (&["other"], None, None),
            (&["All"], None, None),
            (&["all"], Some(Role::Viewer), Some(Role::Viewer)),
            (&["qa"], Some(Role::Tester), Some(Role::Tester)),
            (&["leads"], Some(Role::Approver), Some(Role::Tester)),
            (&["all", "qa"], Some(Role::Tester), Some(Role::Tester)),
            (&["other", "all-leads", "all"], Some(Role::Approver), Some(Role::Tester)),
        ] {
            for (admin, expected) in [(&write, with_write), (&read, without)] {
                let role = Role::of_groups(admin, admin.oidc.as_ref().unwrap(), &groups(names));
                assert_eq!(role, expected, "{names:?}, write = {}", admin.write);
            }
        }
        assert_eq!((Role::of_token(&write), Role::of_token(&read)), (Role::Approver, Role::Tester));
        assert!(Role::Viewer < Role::Tester && Role::Tester < Role::Approver);
    }
}
