package main

import (
	"github.com/spf13/cobra"

	"github.com/sluice-router/sluice/internal/server"
)

// newClientsReference writes docs/clients.md; "make docs" calls it.
func newClientsReference() *cobra.Command {
	return &cobra.Command{
		Use:    "clients-reference",
		Short:  "Print which methods of SDKs are served, in Markdown",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return server.WriteClients(cmd.OutOrStdout())
		},
	}
}
