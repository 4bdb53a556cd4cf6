//! The types of macros over lists and maps.

use super::{Checker, fault};
use crate::faults::CompileFault;
use crate::tree::{Fold, FoldKind, NodeKind};
use crate::types::Type;

impl<'a> Checker<'a> {
    /// The result of a macro that leaves out elements: what it has so far, with an element or without it.
    fn filtered(&mut self, at: usize, condition: Type, result: Type) -> Result<Type, CompileFault> {
        self.conditional(at, &[condition, result.clone(), result.clone()])?;
        Ok(result)
    }

    /// The type of a macro.
    pub(super) fn fold(&mut self, at: usize, fold: &'a Fold) -> Result<Type, CompileFault> {
        let range = self.node(&fold.range)?;
        let range = self.solution.solve(&range, false);
        let two = fold.second.is_some();
        let (first, second) = match &range {
            Type::Named("list", parameters) => {
                let element = parameters.first().cloned().unwrap_or(Type::DYN);
                if two { (Type::INT, element) } else { (element, Type::DYN) }
            }
            Type::Named("map", parameters) => (
                parameters.first().cloned().unwrap_or(Type::DYN),
                parameters.get(1).cloned().unwrap_or(Type::DYN),
            ),
            Type::Named("dyn" | "!error!", _) => (Type::DYN, Type::DYN),
            Type::Parameter(_) => {
                self.solution.assign(&Type::DYN, &range);
                (Type::DYN, Type::DYN)
            }
            other @ (Type::Named(..) | Type::Object(_) | Type::Declared(_)) => {
                let text = format!(
                    "expression of type '{other}' cannot be range of a comprehension \
                     (must be list, map, or dynamic)"
                );
                let unknown = self.note(CompileFault::new(fold.range.at, text))?;
                (unknown.clone(), unknown)
            }
        };
        if two
            && matches!(&fold.range.kind, NodeKind::Name(name) if name.trim_start_matches('.') == "claims")
            && range.parts().0 == "map"
        {
            // The reference iterates over the values there, and uses each as a key.
            return fault(fold.range.at, "a macro with two variables over all claims is not supported here");
        }
        let outside = self.scope.len();
        self.scope.push((&fold.variable, first.clone()));
        if let Some(name) = &fold.second {
            self.scope.push((name, second));
        }
        let filter = fold.filter.as_ref().map(|filter| self.node(filter)).transpose()?;
        let result = match fold.kind {
            FoldKind::All | FoldKind::Exists => {
                self.boolean(&fold.body)?;
                Type::BOOL
            }
            FoldKind::ExistsOne => {
                let condition = self.node(&fold.body)?;
                self.filtered(at, condition, Type::INT)?;
                Type::BOOL
            }
            FoldKind::Filter => {
                let condition = self.node(&fold.body)?;
                self.filtered(at, condition, Type::list(first))?
            }
            FoldKind::Map => Type::list(self.node(&fold.body)?),
            FoldKind::TransformMap => {
                let value = self.node(&fold.body)?;
                Type::map(first, value)
            }
            FoldKind::TransformMapEntry => {
                let entry = self.node(&fold.body)?;
                let map = Type::map(self.solution.fresh(), self.solution.fresh());
                if !self.solution.assign(&entry, &map) {
                    let entry = self.solution.solve(&entry, true);
                    return fault(fold.body.at, format!("expected type 'map(dyn, dyn)' but found '{entry}'"));
                }
                map
            }
            FoldKind::SortBy => {
                let keys = Type::list(self.node(&fold.body)?);
                let (sorted, callee) = self.resolve(at, "@sortByAssociatedKeys", &[range, keys], true)?;
                fold.callee.set(callee).ok();
                sorted
            }
        };
        let result = match filter {
            Some(filter) => self.filtered(at, filter, result)?,
            None => result,
        };
        self.scope.truncate(outside);
        Ok(self.solution.solve(&result, false))
    }
}
