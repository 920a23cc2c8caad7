package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-router/sluice/internal/config"
)

func newRoot(environ, args []string) *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "A router for LLM inference fleets with a bounded, fair gate in front of prefill",
		Long: `sluice routes requests in the OpenAI API to a fleet of engines (SGLang, vLLM) that
run whole requests, or prefill and decode apart. It decides when a request may start
and where each phase runs.

  sluice demo                     see it work, without any engine
  sluice serve --worker-urls http://10.0.0.1:30000

Exit codes: 0 all right, 1 the configuration is wrong or something failed, 2 the
command line cannot be read.`,
		Args:              commandName,
		SilenceErrors:     true,
		SilenceUsage:      true,
		Version:           versionLine(),
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var value *pflag.InvalidValueError
		if errors.As(err, &value) {
			// The flag exists and its value is invalid: the error is the same as serve's.
			return fmt.Errorf("flag --%s: %q: %w", value.GetFlag().Name, value.GetValue(), value.Unwrap())
		}
		return &usageError{cmd.CommandPath(), config.ExplainFlagError(err, cmd.Flags(), args)}
	})
	root.AddCommand(
		newServe(environ),
		newCheckConfig(environ),
		newDemo(),
		newSim(),
		newReplay(),
		newVersion(),
		newCompletion(),
		newReference(),
		newMetricsReference(),
		newClientsReference(),
	)
	return root
}

// commandName refuses arguments that are not a command.
func commandName(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q", args[0])
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(similar, " or "))
	}
	return &usageError{cmd.CommandPath(), err}
}

// usage turns the error of a check of arguments into one of usage.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{cmd.CommandPath(), err}
		}
		return nil
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{cmd.CommandPath(), fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

// expandArgs lets the flags of the configuration take several words.
func expandArgs(args []string) []string {
	for i, arg := range args {
		switch arg {
		case "serve", "check-config":
			return append(args[:i+1:i+1], config.ExpandArgs(args[i+1:])...)
		}
		if !strings.HasPrefix(arg, "-") {
			break // another command
		}
	}
	return args
}

// addConfigFlags declares the settings as flags of cmd, in the order of their
// reference.
func addConfigFlags(cmd *cobra.Command) *config.Flags {
	fs := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	fs.SortFlags = false
	cmd.Flags().SortFlags = false
	flags := config.AddFlags(fs)
	cmd.Flags().AddFlagSet(fs)
	for name, choices := range config.FlagChoices() {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
	}
	files := map[string]bool{}
	for _, name := range config.FileFlags() {
		files[name] = true
		_ = cmd.MarkFlagFilename(name)
	}
	fs.VisitAll(func(f *pflag.Flag) {
		if _, has := cmd.GetFlagCompletionFunc(f.Name); !has && !files[f.Name] {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions)
		}
	})
	return flags
}
