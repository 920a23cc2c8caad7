package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/discovery/file"
)

func newCheckConfig(environ []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check-config [FILE]",
		Short: "Print all mistakes of a configuration, or what would be in force",
		Long: `Print all mistakes of a configuration and exit with 1, or print the configuration
that would be in force, with the source of each setting and with secrets hidden,
and exit with 0. Warnings, and faults of the file that --discovery-file names, do not
change the exit code.

The environment and the flags of "sluice serve" count as they do there. A class
file is checked where --router-policy-config names it; the classes are printed
with the rest.`,
		Example: `  sluice check-config sluice.yaml
  sluice check-config --router-policy-config classes.yaml`,
		Args: usage(cobra.MaximumNArgs(1)),
	}
	flags := addConfigFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			config := cmd.Flags().Lookup("config")
			if config.Changed {
				return &usageError{cmd.CommandPath(), errors.New("FILE and --config name the same thing; give one of them")}
			}
			if err := config.Value.Set(args[0]); err != nil {
				return err
			}
		}
		cfg, warnings, err := config.LoadFlags(flags, environ, nil)
		printWarnings(cmd.ErrOrStderr(), warnings)
		if err != nil {
			return err
		}
		// A class file may well be checked by itself.
		if missing := missingWorkers(cfg, rolesOf(cfg.Workers)); missing != "" && (cfg.File != "" || len(cfg.Workers) > 0) {
			printLines(cmd.ErrOrStderr(), "sluice: warning: ", missing)
		}
		if advice := cfg.LookaheadAdvice(); advice != "" {
			printLines(cmd.ErrOrStderr(), "sluice: warning: ", advice)
		}
		checkList(cmd.ErrOrStderr(), cfg)
		return cfg.WriteEffective(cmd.OutOrStdout())
	}
	return cmd
}

// checkList reads the file of workers, if there is one, and says what it has. What is wrong
// with it is a warning: it may well be written later, and a worker that is wrong is left out.
func checkList(w io.Writer, cfg *config.Config) {
	if cfg.Discovery.Provider != config.DiscoveryFile {
		return
	}
	n, warnings, ok := file.Check(cfg)
	printWarnings(w, warnings)
	if ok {
		printLines(w, "sluice: ", fmt.Sprintf("%s: workers that can be used: %d", cfg.Discovery.File, n))
	}
}

func printWarnings(w io.Writer, warnings []config.Warning) {
	for _, warning := range warnings {
		printLines(w, "sluice: warning: ", warning.String())
	}
}

// newReference writes docs/configuration.md; "make docs" calls it.
func newReference() *cobra.Command {
	return &cobra.Command{
		Use:    "config-reference",
		Short:  "Print the reference of all settings, in Markdown",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return config.WriteReference(cmd.OutOrStdout())
		},
	}
}
