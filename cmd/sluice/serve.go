package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/sluice-router/sluice/internal/config"
)

func newServe(environ []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve clients until SIGTERM or SIGINT",
		Long: `Serve clients until SIGTERM or SIGINT.

Each setting is a flag, an environment variable (SLUICE_ and the flag's name in
capitals, with _ for -) and a key of the YAML file named by --config; a flag wins
over the environment, which wins over the file.`,
		Example: `  sluice serve --worker-urls http://10.0.0.1:30000 http://10.0.0.2:30000

  sluice serve --pd-disaggregation \
    --prefill http://10.0.0.1:30000 8998 --decode http://10.0.0.2:30000 \
    --prefill-max-inflight-requests-per-worker 8`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := addConfigFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, warnings, err := config.LoadFlags(flags, environ, nil)
		if err != nil {
			printWarnings(cmd.ErrOrStderr(), warnings)
			return err
		}
		return runServe(cmd.Context(), cfg, warnings)
	}
	return cmd
}

// runServe serves with the configuration until it is told to stop. Warnings
// are for the log.
func runServe(_ context.Context, _ *config.Config, _ []config.Warning) error {
	return errors.New("cannot serve: the server is not part of this build")
}
