-- Neovim 0.11 or later: `steerd lsp` for policies. Put this into ~/.config/nvim/init.lua, or copy it to
-- ~/.config/nvim/plugin/steerd.lua.
vim.filetype.add({
  filename = { ["policy.toml"] = "toml.steerd" },
  pattern = { [".*%.policy%.toml"] = "toml.steerd" },
})

-- Highlighting and indentation of TOML.
vim.treesitter.language.register("toml", "toml.steerd")

vim.lsp.config("steerd", {
  cmd = { "steerd", "lsp" },
  filetypes = { "toml.steerd" },
  root_markers = { "steerd.toml", ".git" },
  -- The device model that policies are checked for: a name, or a file relative to the root.
  init_options = { model = "ideal" },
})
vim.lsp.enable("steerd")

-- Where each rule is decided, behind its name.
vim.api.nvim_create_autocmd("LspAttach", {
  callback = function(event)
    local client = vim.lsp.get_client_by_id(event.data.client_id)
    if client and client.name == "steerd" then
      vim.lsp.inlay_hint.enable(true, { bufnr = event.buf })
    end
  end,
})
