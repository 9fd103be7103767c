"""May a loadable run on a configuration: rules, each one function whose docstring is the documentation."""

from nvdla.checks.lint.linter import Finding, Report, lint, lint_file

__all__ = ["Finding", "Report", "lint", "lint_file"]
