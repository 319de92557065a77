//! The warning of `check` about endpoints whose prompts need more than one page.

use config::{Config, View};
use gateway::router::catalog::Catalog;
use gateway::router::owner::Owner;

/// Returns a warning that names each endpoint with more prompts of `catalog` than one page has;
/// `None` where there is none.
pub(super) fn warning(config: &Config, catalog: &Catalog) -> Option<String> {
    let page_size = config.listing.page_size;
    let main = ("server".to_owned(), None, config.server.exposure.prompts);
    let views = config.views.iter().map(|view| {
        let key = format!("views.{}", view.name);
        (key, Some(view), view.exposure.prompts)
    });
    let endpoints = std::iter::once(main).chain(views).filter(|(.., lists_prompts)| *lists_prompts);
    let counted = endpoints.map(|(key, view, _)| {
        let listed = catalog.content.owners().filter(|owner| is_listed(owner, view));
        (key, listed.count())
    });
    let beyond = counted.filter(|(_, count)| *count > page_size);
    let beyond: Vec<_> = beyond.map(|(key, count)| format!("{key} lists {count}")).collect();
    (!beyond.is_empty()).then(|| {
        format!(
            "listing.page_size: {} prompts on pages of {page_size}: hosts and gateways that read \
             one page only, such as mcp-hub, miss the others; raise it, or let them use a view \
             with fewer",
            beyond.join(", ")
        )
    })
}

/// Whether an endpoint, the main one without a view, lists a prompt to those who may use it.
fn is_listed(owner: &Owner, view: Option<&View>) -> bool {
    view.map_or(!owner.is_version(), |view| {
        (view.has_versions || !owner.is_version())
            && view.serves(&owner.upstream, &owner.public_name)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cli::unmatched::KnownPrompts;
    use domain::prompt::Prompt;
    use gateway::upstream::prompt_list::PromptList;

    #[test]
    fn an_endpoint_that_needs_more_than_one_page_is_named() {
        let prompts = ["a", "b", "c"].map(Prompt::named).into();
        let lists = [Some(PromptList { prompts, ..PromptList::default() })];
        let warning = |page_size: usize| {
            let toml = format!(
                "[listing]\npage_size = {page_size}\n\
                 [upstreams.lib]\ntransport = \"library\"\npath = \".\"\n\
                 [views.few]\nprompts = [\"lib__a\"]\n[views.tools]\nexpose = [\"tools\"]\n\
                 [views.two]\nprompts = [\"lib__a\", \"lib__b\"]\n"
            );
            let config = Config::parse("g", &toml, Path::new("."), &[]).unwrap();
            warning(&config, KnownPrompts::new(&config, &lists).catalog())
        };
        let named = |page_size| Some(warning(page_size)?.split_once(" prompts on ")?.0.to_owned());
        assert_eq!(named(3), None);
        assert_eq!(named(2).unwrap(), "listing.page_size: server lists 3");
        let both = "listing.page_size: server lists 3, views.two lists 2";
        assert_eq!(named(1).unwrap(), both);
    }
}
