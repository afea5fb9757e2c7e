"""Parts of the bounds and of the exact search: groups that can be listed, prices of the site, compiled searches."""
